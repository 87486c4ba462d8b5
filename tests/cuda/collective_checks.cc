#include "tests/cuda/collective_checks.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "src/device/device.h"

namespace shoal::testing {
namespace {

Bytes fold(const std::vector<Bytes>& all, DataType type, ReduceOp op) {
  std::vector<const std::byte*> operands;
  for (const Bytes& each : all) operands.push_back(each.data());
  Bytes result(all[0].size());
  const std::size_t count = result.size() / size_of(type);
  if (op == ReduceOp::avg) {
    host_device().reduce_average(result.data(), operands, count, type, static_cast<int>(all.size()));
  } else {
    host_device().reduce(result.data(), operands, count, type, op);
  }
  return result;
}

/// The counts of an uneven call; for all_to_all those that `rank` sends, or with `receives` receives.
std::vector<std::size_t> counts_of(const TestCall& test, int ranks, int rank, bool receives) {
  std::vector<std::size_t> counts;
  for (int other = 0; other < ranks; ++other) {
    if (test.kind != CollectiveKind::all_to_all) {
      counts.push_back(share_of(test, other));
    } else {
      counts.push_back(receives ? block_of(test, other, rank, ranks) : block_of(test, rank, other, ranks));
    }
  }
  return counts;
}

std::size_t sum_to(const std::vector<std::size_t>& counts, int end) {
  std::size_t sum = 0;
  for (int i = 0; i < end; ++i) sum += counts[static_cast<std::size_t>(i)];
  return sum;
}

Bytes cut(const Bytes& data, std::size_t begin, std::size_t count, std::size_t element_bytes) {
  const auto first = data.begin() + static_cast<std::ptrdiff_t>(begin * element_bytes);
  return Bytes(first, first + static_cast<std::ptrdiff_t>(count * element_bytes));
}

bool holds(const std::byte* memory, const Bytes& wanted) {
  return wanted.empty() || std::memcmp(memory, wanted.data(), wanted.size()) == 0;
}

}  // namespace

Bytes rank_data(int rank, int call, std::size_t count, DataType type, bool exact) {
  // Every rank computes the input of all ranks, so the generator must be cheap under sanitizers.
  std::uint64_t state = static_cast<std::uint64_t>(rank * 1009 + call) * 0x9E3779B97F4A7C15;
  const std::size_t element_bytes = size_of(type);
  Bytes data(count * element_bytes);
  std::byte* at = data.data();
  for (const std::byte* end = at + data.size(); at != end; at += element_bytes) {
    state = state * 6364136223846793005 + 1442695040888963407;
    const auto drawn = static_cast<std::uint32_t>(state >> 32);
    const std::int64_t value = drawn % 5;
    if (type == DataType::float32) {
      const float f = exact ? static_cast<float>(value) : static_cast<float>(drawn) * 0x1p-20F;
      std::memcpy(at, &f, sizeof f);
    } else if (type == DataType::bfloat16) {
      const float f = exact ? static_cast<float>(value) : static_cast<float>(drawn) * 0x1p-28F;
      std::memcpy(at, reinterpret_cast<const std::byte*>(&f) + 2, 2);
    } else {
      std::memcpy(at, &value, element_bytes);
    }
  }
  return data;
}

DeviceBuffer::DeviceBuffer(StreamRank& rank, std::size_t bytes, std::size_t offset) : rank_(rank), offset_(offset) {
  base_ = *rank.cuda.allocate(bytes + offset + 1);
}
DeviceBuffer::~DeviceBuffer() { static_cast<void>(rank_.cuda.release(base_)); }
void DeviceBuffer::set(const Bytes& data) {
  if (!data.empty()) std::memcpy(host_address(), data.data(), data.size());
}

std::string to_string(const TestCall& test) {
  return fmt::format("{}{} of {} {} {}{}", to_string(test.kind), test.uneven ? "_v" : "", test.count, to_string(test.type),
                     to_string(test.op), test.in_place ? " in place" : "");
}

std::size_t share_of(const TestCall& test, int rank) {
  if (!test.uneven) return test.count;
  const std::size_t parts[] = {3, 0, 4, 1, 2};  // quarters of the count
  return test.count * parts[(rank + static_cast<int>(test.count)) % 5] / 4;
}

std::size_t block_of(const TestCall& test, int from, int to, int ranks) {
  return test.uneven ? share_of(test, from * ranks + to) : test.count;
}

Bytes input_of(const TestCall& test, int rank, int ranks, int call, bool exact) {
  const auto all = [&] {
    switch (test.kind) {
      case CollectiveKind::reduce_scatter:
      case CollectiveKind::scatter:
      case CollectiveKind::all_to_all:
        return sum_to(counts_of(test, ranks, rank, false), ranks);
      case CollectiveKind::all_gather:
      case CollectiveKind::gather:
        return share_of(test, rank);
      default:
        return test.count;
    }
  };
  const bool from_root = test.kind == CollectiveKind::broadcast || test.kind == CollectiveKind::scatter;
  return from_root && rank != test.root ? Bytes() : rank_data(rank, call, all(), test.type, exact);
}

Bytes wanted_of(const TestCall& test, int rank, int ranks, int call, bool exact) {
  std::vector<Bytes> all;
  for (int r = 0; r < ranks; ++r) all.push_back(input_of(test, r, ranks, call, exact));
  const std::vector<std::size_t> counts = counts_of(test, ranks, rank, false);
  const std::size_t element_bytes = size_of(test.type);
  const auto joined = [&] {
    Bytes result;
    for (const Bytes& each : all) result.insert(result.end(), each.begin(), each.end());
    return result;
  };
  switch (test.kind) {
    case CollectiveKind::broadcast:
      return all[static_cast<std::size_t>(test.root)];
    case CollectiveKind::all_gather:
      return joined();
    case CollectiveKind::gather:
      return rank == test.root ? joined() : Bytes();
    case CollectiveKind::scatter:
      return cut(all[static_cast<std::size_t>(test.root)], sum_to(counts, rank), share_of(test, rank), element_bytes);
    case CollectiveKind::reduce_scatter:
      return cut(fold(all, test.type, test.op), sum_to(counts, rank), share_of(test, rank), element_bytes);
    case CollectiveKind::all_to_all: {
      Bytes result;
      for (int from = 0; from < ranks; ++from) {
        const std::size_t before = sum_to(counts_of(test, ranks, from, false), rank);
        const Bytes block = cut(all[static_cast<std::size_t>(from)], before, block_of(test, from, rank, ranks), element_bytes);
        result.insert(result.end(), block.begin(), block.end());
      }
      return result;
    }
    case CollectiveKind::reduce:
      return rank == test.root ? fold(all, test.type, test.op) : Bytes();
    default:
      return fold(all, test.type, test.op);
  }
}

Result<StreamWork> start(StreamRank& rank, const TestCall& test, const void* input, void* output) {
  StreamCommunicator& group = rank.group;
  const auto [kind, count, type, op, root, in_place, misalignment, uneven] = test;
  const std::vector<std::size_t> counts = counts_of(test, rank.size(), rank.rank(), false);
  const std::vector<std::size_t> receives = counts_of(test, rank.size(), rank.rank(), true);
  switch (kind) {
    case CollectiveKind::broadcast:
      return group.broadcast(output, count, type, root, rank.stream);
    case CollectiveKind::all_gather:
      return uneven ? group.all_gather_v(input, output, counts, type, rank.stream)
                    : group.all_gather(input, output, count, type, rank.stream);
    case CollectiveKind::reduce_scatter:
      return uneven ? group.reduce_scatter_v(input, output, counts, type, op, rank.stream)
                    : group.reduce_scatter(input, output, count, type, op, rank.stream);
    case CollectiveKind::reduce:
      return group.reduce(input, output, count, type, op, root, rank.stream);
    case CollectiveKind::gather:
      return uneven ? group.gather_v(input, output, counts, type, root, rank.stream)
                    : group.gather(input, output, count, type, root, rank.stream);
    case CollectiveKind::scatter:
      return uneven ? group.scatter_v(input, output, counts, type, root, rank.stream)
                    : group.scatter(input, output, count, type, root, rank.stream);
    case CollectiveKind::all_to_all:
      return uneven ? group.all_to_all_v(input, counts, output, receives, type, rank.stream)
                    : group.all_to_all(input, output, count, type, rank.stream);
    case CollectiveKind::barrier:
      return group.barrier(rank.stream);
    default:
      return group.all_reduce(input, output, count, type, op, rank.stream);
  }
}

std::string check(StreamRank& rank, const TestCall& test, int call, bool exact, bool registers) {
  const int ranks = rank.size();
  const Bytes mine = input_of(test, rank.rank(), ranks, call, exact);
  const Bytes wanted = wanted_of(test, rank.rank(), ranks, call, exact);
  const bool deals_in = test.kind == CollectiveKind::reduce_scatter || test.kind == CollectiveKind::scatter;
  const bool deals_out = test.kind == CollectiveKind::all_gather || test.kind == CollectiveKind::gather;
  const std::size_t own = sum_to(counts_of(test, ranks, rank.rank(), false), rank.rank()) * size_of(test.type);
  const std::size_t most = std::max(mine.size(), wanted.size()) + own + 64;
  DeviceBuffer input(rank, most, test.misalignment);
  DeviceBuffer output(rank, most, test.misalignment);
  if (registers) {
    if (Status status = rank.group.register_buffer(input.get()); !status.ok()) return status.to_string();
  }
  std::byte* from = input.get();
  std::byte* to = output.get();
  if (test.kind == CollectiveKind::broadcast || (test.in_place && test.kind != CollectiveKind::all_to_all)) {
    from = deals_out ? from + own : from;
    to = deals_in ? from + own : deals_out ? from - own : from;
  }
  if (!mine.empty()) std::memcpy(rank.cuda.host_address(from), mine.data(), mine.size());
  const std::string what = fmt::format("{} (call {})", to_string(test), call);
  // A rank without input or output may pass any pointer.
  const bool no_input = mine.empty() && test.kind != CollectiveKind::broadcast && call % 2 == 0;
  const bool no_output = wanted.empty() && call % 2 == 0;
  Result<StreamWork> work = start(rank, test, no_input ? nullptr : from, no_output ? nullptr : to);
  if (!work.ok()) return what + ": " + work.status().to_string();
  if (Status status = work->wait(); !status.ok()) return what + ": " + status.to_string();
  if (!work->is_completed()) return what + ": not completed after wait()";
  const std::byte* got = rank.cuda.host_address(to);
  if (!holds(got, wanted)) {
    const auto at = std::mismatch(wanted.begin(), wanted.end(), got).second - got;
    return fmt::format("{}: byte {} of {} is wrong", what, at, wanted.size());
  }
  const bool separate = from != to && !(test.in_place && (deals_in || deals_out));
  if (separate && !holds(rank.cuda.host_address(from), mine)) return what + ": the input was changed";
  return "";
}

std::string check_all_kinds(StreamRank& rank, bool exact, bool registers) {
  int call = 0;
  const CollectiveKind kinds[] = {CollectiveKind::all_reduce, CollectiveKind::reduce_scatter, CollectiveKind::all_gather,
                                  CollectiveKind::broadcast,  CollectiveKind::reduce,         CollectiveKind::gather,
                                  CollectiveKind::scatter,    CollectiveKind::all_to_all,     CollectiveKind::barrier};
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{1000}, std::size_t{40001}}) {
    for (const CollectiveKind kind : kinds) {
      for (const bool in_place : {false, true}) {
        for (const bool uneven : {false, true}) {
          if (uneven && !deals_in_shares(kind)) continue;
          const int root = (static_cast<int>(count) + call) % rank.size();
          const TestCall test{kind,
                              kind == CollectiveKind::barrier ? 0 : count,
                              DataType::float32,
                              ReduceOp::sum,
                              root,
                              in_place,
                              (count % 4) * 4,
                              uneven};
          if (std::string error = check(rank, test, call++, exact, registers); !error.empty()) return error;
        }
      }
    }
  }
  const std::pair<DataType, ReduceOp> others[] = {{DataType::bfloat16, ReduceOp::avg},
                                                  {DataType::int8, ReduceOp::prod},
                                                  {DataType::int64, ReduceOp::bxor},
                                                  {DataType::uint16, ReduceOp::max},
                                                  {DataType::float32, ReduceOp::min}};
  for (const auto& [type, op] : others) {
    if (exact && type == DataType::bfloat16) continue;  // an average that must round
    for (const std::size_t count : {std::size_t{333}, std::size_t{70003}}) {
      for (const CollectiveKind kind : {CollectiveKind::all_reduce, CollectiveKind::reduce, CollectiveKind::reduce_scatter}) {
        if (kind != CollectiveKind::all_reduce && count > 333) continue;
        const TestCall test{kind, count, type, op, call % rank.size()};
        if (std::string error = check(rank, test, call++, exact, false); !error.empty()) return error;
      }
      const TestCall moved{CollectiveKind::all_to_all, count / 10, type, op, 0, false, 1, call % 2 == 0};
      if (std::string error = check(rank, moved, call++, exact, false); !error.empty()) return error;
    }
  }
  return "";
}

}  // namespace shoal::testing
