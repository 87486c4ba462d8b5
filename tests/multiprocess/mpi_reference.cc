// Open MPI as the reference: the same calls on the same random data by Open MPI and by shoal, in the same processes. Integers
// must be equal; floating-point sums and products may differ by what two orders of rounding allow. Started by mpirun; rank 0
// prints how many calls of each kind were compared. See mpi_test.py.
//
//   mpi_reference SEED CALLS
#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include <shoal/communicator.h>

namespace {

using namespace shoal;

struct Type {
  DataType type;
  MPI_Datatype mpi;
};
struct Op {
  ReduceOp op;
  MPI_Op mpi;
};

/// Types and operations that both libraries have.
std::vector<Type> types() {
  return {{DataType::float32, MPI_FLOAT},  {DataType::float64, MPI_DOUBLE},  {DataType::int8, MPI_INT8_T},
          {DataType::int16, MPI_INT16_T},  {DataType::int32, MPI_INT32_T},   {DataType::int64, MPI_INT64_T},
          {DataType::uint8, MPI_UINT8_T},  {DataType::uint16, MPI_UINT16_T}, {DataType::uint32, MPI_UINT32_T},
          {DataType::uint64, MPI_UINT64_T}};
}
std::vector<Op> operations() {
  return {{ReduceOp::sum, MPI_SUM},   {ReduceOp::prod, MPI_PROD}, {ReduceOp::min, MPI_MIN},  {ReduceOp::max, MPI_MAX},
          {ReduceOp::band, MPI_BAND}, {ReduceOp::bor, MPI_BOR},   {ReduceOp::bxor, MPI_BXOR}};
}

/// One call, as all ranks know it.
struct Call {
  CollectiveKind kind{};
  Type type{};
  Op op{};
  int root = 0;
  std::vector<std::size_t> shares;              ///< of each rank; one number where the message is not dealt in shares
  std::vector<std::vector<std::size_t>> sends;  ///< all_to_all: of rank a for rank b
  std::uint64_t seed = 0;                       ///< of the data

  [[nodiscard]] std::string text() const {
    return fmt::format("{} of {} ({}), root {}, shares {}", to_string(kind), to_string(type.type), to_string(op.op), root,
                       fmt::join(shares, " "));
  }
};

Call random_call(std::mt19937_64& random, int ranks) {
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const auto p = static_cast<std::size_t>(ranks);
  Call call;
  do {
    call.kind = static_cast<CollectiveKind>(below(kCollectiveKindCount));
  } while (call.kind == CollectiveKind::barrier);
  do {
    call.type = types()[below(types().size())];
    call.op = operations()[below(operations().size())];
  } while (!supports(call.type.type, call.op.op));
  call.root = static_cast<int>(below(p));
  const auto size = [&] { return below(4) == 0 ? below(30'000) : below(50); };
  for (std::size_t rank = 0; rank < (deals_in_shares(call.kind) ? p : 1); ++rank)
    call.shares.push_back(below(4) == 0 ? 0 : size());
  if (call.kind == CollectiveKind::all_to_all) {
    call.sends.assign(p, std::vector<std::size_t>(p));
    for (auto& of_rank : call.sends) {
      for (std::size_t& count : of_rank) count = below(4) == 0 ? 0 : size();
    }
  }
  call.seed = random();
  return call;
}

/// Numbers of both signs from 1e-3 to 1e3 for floating types. Integers small enough for the sum or the product of all ranks:
/// overflow is not specified, and Open MPI saturates some types where it uses vector instructions.
template <typename T>
std::vector<std::byte> typed_data(const Call& call, int ranks, std::size_t elements, std::uint64_t seed) {
  std::vector<std::byte> bytes(elements * sizeof(T));
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> exponent(-3, 3);
  constexpr auto kMost = static_cast<double>(std::numeric_limits<T>::max());
  const bool adds = reduces(call.kind) && call.op.op == ReduceOp::sum;
  const bool multiplies = reduces(call.kind) && call.op.op == ReduceOp::prod;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(T)) {
    T value{};
    if constexpr (std::is_floating_point_v<T>) {
      value = static_cast<T>(std::pow(10.0, exponent(random)) * (random() % 2 == 0 ? 1 : -1));
    } else if (adds || multiplies) {
      const auto most = static_cast<std::uint64_t>(adds ? kMost / 2 / ranks : std::pow(kMost / 2, 1.0 / ranks));
      value = static_cast<T>(random() % (most + 1));
      if (std::is_signed_v<T> && random() % 2 == 0) value = static_cast<T>(-value);
    } else {
      value = static_cast<T>(random());
    }
    std::memcpy(bytes.data() + at, &value, sizeof value);
  }
  return bytes;
}

std::vector<std::byte> data_of(const Call& call, int rank, int ranks, std::size_t elements) {
  const std::uint64_t seed = call.seed + static_cast<std::uint64_t>(rank) * 7919;
  const auto typed = [&](auto zero) { return typed_data<decltype(zero)>(call, ranks, elements, seed); };
  switch (call.type.type) {
    case DataType::float32:
      return typed(float{});
    case DataType::float64:
      return typed(double{});
    case DataType::int8:
      return typed(std::int8_t{});
    case DataType::int16:
      return typed(std::int16_t{});
    case DataType::int32:
      return typed(std::int32_t{});
    case DataType::int64:
      return typed(std::int64_t{});
    case DataType::uint8:
      return typed(std::uint8_t{});
    case DataType::uint16:
      return typed(std::uint16_t{});
    case DataType::uint32:
      return typed(std::uint32_t{});
    default:
      return typed(std::uint64_t{});
  }
}

/// How far apart two results of `ranks` rounded additions or multiplications may be, given the sum (or product) of the absolute
/// values: each is within (ranks - 1) * u of the exact one to first order. Source: Higham, "Accuracy and Stability of Numerical
/// Algorithms", 2nd edition, section 4.2. The factor is 1.01 times that for what is of higher order.
template <typename T>
double bound(double magnitude, int ranks) {
  constexpr double kUnit = std::numeric_limits<T>::epsilon() / 2.0;
  return 2 * 1.01 * (ranks - 1) * kUnit * magnitude;
}

/// Empty if `found` matches `reference` within the bound. `magnitudes` has the arguments of bound() for each element.
template <typename T>
std::string compare_floating(const std::vector<std::byte>& found, const std::vector<std::byte>& reference,
                             const std::vector<double>& magnitudes, int ranks) {
  for (std::size_t i = 0; i < magnitudes.size(); ++i) {
    T a{};
    T b{};
    std::memcpy(&a, found.data() + i * sizeof(T), sizeof a);
    std::memcpy(&b, reference.data() + i * sizeof(T), sizeof b);
    const double apart = std::fabs(static_cast<double>(a) - static_cast<double>(b));
    if (!(apart <= bound<T>(magnitudes[i], ranks)))
      return fmt::format("element {} is {}, with Open MPI {}: {} apart, {} allowed", i, a, b, apart,
                         bound<T>(magnitudes[i], ranks));
  }
  return {};
}

template <typename T>
std::vector<double> magnitudes_of(const Call& call, int ranks, std::size_t first, std::size_t count, std::size_t all) {
  std::vector<double> result(count, call.op.op == ReduceOp::prod ? 1.0 : 0.0);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<std::byte> data = data_of(call, rank, ranks, all);
    for (std::size_t i = 0; i < count; ++i) {
      T value{};
      std::memcpy(&value, data.data() + (first + i) * sizeof(T), sizeof value);
      const double magnitude = std::fabs(static_cast<double>(value));
      result[i] = call.op.op == ReduceOp::prod ? result[i] * magnitude : result[i] + magnitude;
    }
  }
  return result;
}

std::size_t sum(const std::vector<std::size_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}
std::vector<int> to_ints(const std::vector<std::size_t>& counts) { return {counts.begin(), counts.end()}; }
std::vector<int> places(const std::vector<std::size_t>& counts) {
  std::vector<int> result(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), result.begin(), 0);
  return result;
}
std::vector<std::size_t> column(const std::vector<std::vector<std::size_t>>& rows, int at) {
  std::vector<std::size_t> result;
  for (const auto& row : rows) result.push_back(row[static_cast<std::size_t>(at)]);
  return result;
}

/// Makes `call` with both libraries and compares the results. Empty if they agree.
std::string compare(Communicator& shoal, const Call& call) {
  const int rank = shoal.rank();
  const int ranks = shoal.size();
  const auto me = static_cast<std::size_t>(rank);
  const bool is_root = rank == call.root;
  const std::size_t all = sum(call.shares);
  const std::size_t mine = deals_in_shares(call.kind) ? call.shares[me] : all;
  const DataType type = call.type.type;
  const MPI_Datatype mpi_type = call.type.mpi;
  const std::size_t element = size_of(type);
  const std::vector<int> counts = to_ints(call.shares);
  const std::vector<int> offsets = places(call.shares);

  std::size_t in = all;
  std::size_t out = all;
  std::size_t first = 0;  // the place of the output in the whole message
  switch (call.kind) {
    case CollectiveKind::all_gather:
    case CollectiveKind::gather:
      in = mine;
      break;
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::scatter:
      out = mine;
      first = static_cast<std::size_t>(offsets[me]);
      break;
    case CollectiveKind::all_to_all:
      in = sum(call.sends[me]);
      out = sum(column(call.sends, rank));
      break;
    default:
      break;
  }
  if (!is_root && (call.kind == CollectiveKind::gather || call.kind == CollectiveKind::reduce)) out = 0;
  const std::vector<std::byte> input = data_of(call, rank, ranks, in);
  std::vector<std::byte> found(out * element);
  if (call.kind == CollectiveKind::broadcast && is_root) found = input;
  std::vector<std::byte> reference = found;

  Status status;
  int code = MPI_SUCCESS;
  switch (call.kind) {
    case CollectiveKind::all_reduce:
      status = shoal.all_reduce(input.data(), found.data(), all, type, call.op.op);
      code = MPI_Allreduce(input.data(), reference.data(), counts[0], mpi_type, call.op.mpi, MPI_COMM_WORLD);
      break;
    case CollectiveKind::reduce:
      status = shoal.reduce(input.data(), found.data(), all, type, call.op.op, call.root);
      code = MPI_Reduce(input.data(), reference.data(), counts[0], mpi_type, call.op.mpi, call.root, MPI_COMM_WORLD);
      break;
    case CollectiveKind::reduce_scatter:
      status = shoal.reduce_scatter_v(input.data(), found.data(), call.shares, type, call.op.op);
      code = MPI_Reduce_scatter(input.data(), reference.data(), counts.data(), mpi_type, call.op.mpi, MPI_COMM_WORLD);
      break;
    case CollectiveKind::broadcast:
      status = shoal.broadcast(found.data(), all, type, call.root);
      code = MPI_Bcast(reference.data(), counts[0], mpi_type, call.root, MPI_COMM_WORLD);
      break;
    case CollectiveKind::all_gather:
      status = shoal.all_gather_v(input.data(), found.data(), call.shares, type);
      code = MPI_Allgatherv(input.data(), counts[me], mpi_type, reference.data(), counts.data(), offsets.data(), mpi_type,
                            MPI_COMM_WORLD);
      break;
    case CollectiveKind::gather:
      status = shoal.gather_v(input.data(), found.data(), call.shares, type, call.root);
      code = MPI_Gatherv(input.data(), counts[me], mpi_type, reference.data(), counts.data(), offsets.data(), mpi_type,
                         call.root, MPI_COMM_WORLD);
      break;
    case CollectiveKind::scatter:
      status = shoal.scatter_v(input.data(), found.data(), call.shares, type, call.root);
      code = MPI_Scatterv(input.data(), counts.data(), offsets.data(), mpi_type, reference.data(), counts[me], mpi_type,
                          call.root, MPI_COMM_WORLD);
      break;
    case CollectiveKind::all_to_all: {
      const std::vector<std::size_t> receives = column(call.sends, rank);
      status = shoal.all_to_all_v(input.data(), call.sends[me], found.data(), receives, type);
      code = MPI_Alltoallv(input.data(), to_ints(call.sends[me]).data(), places(call.sends[me]).data(), mpi_type,
                           reference.data(), to_ints(receives).data(), places(receives).data(), mpi_type, MPI_COMM_WORLD);
      break;
    }
    default:
      return "not a call that is compared";
  }
  if (!status.ok()) return status.to_string();
  if (code != MPI_SUCCESS) return fmt::format("Open MPI returned {}", code);
  const bool rounds = reduces(call.kind) && (call.op.op == ReduceOp::sum || call.op.op == ReduceOp::prod);
  if (rounds && type == DataType::float32)
    return compare_floating<float>(found, reference, magnitudes_of<float>(call, ranks, first, out, all), ranks);
  if (rounds && type == DataType::float64)
    return compare_floating<double>(found, reference, magnitudes_of<double>(call, ranks, first, out, all), ranks);
  const auto [wrong, right] = std::ranges::mismatch(found, reference);
  if (wrong == found.end()) return {};
  return fmt::format("element {} of {} differs from Open MPI's", static_cast<std::size_t>(wrong - found.begin()) / element,
                     out);
}

int compare_all(std::uint64_t seed, int calls) {
  auto made = Communicator::create();
  if (!made.ok()) {
    fmt::print(stderr, "{}\n", made.status().to_string());
    return 1;
  }
  Communicator& shoal = **made;
  std::mt19937_64 random(seed);
  std::map<std::string, int> compared;
  for (int i = 0; i < calls; ++i) {
    const Call call = random_call(random, shoal.size());
    if (const std::string wrong = compare(shoal, call); !wrong.empty()) {
      fmt::print(stderr, "seed {} rank {} of {} call {} ({}): {}\n", seed, shoal.rank(), shoal.size(), i, call.text(), wrong);
      return 1;
    }
    ++compared[std::string(to_string(call.kind))];
  }
  if (shoal.rank() != 0) return 0;
  fmt::print("seed {}, {} ranks:", seed, shoal.size());
  for (const auto& [name, count] : compared) fmt::print(" {}={}", name, count);
  fmt::print("\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: mpirun -n RANKS {} SEED CALLS\n", argv[0]);
    return 2;
  }
  MPI_Init(&argc, &argv);
  const int code = compare_all(std::strtoull(argv[1], nullptr, 10), std::atoi(argv[2]));
  if (code != 0) MPI_Abort(MPI_COMM_WORLD, code);  // other ranks may wait in a call
  MPI_Finalize();
  return 0;
}
