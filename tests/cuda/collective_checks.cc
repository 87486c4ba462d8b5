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

/// The sizes that a call with counts is given: of all_to_all what `rank` sends, or receives.
std::vector<std::size_t> counts_of(const Ask& ask, int ranks, int rank, bool receives) {
  std::vector<std::size_t> counts;
  for (int other = 0; other < ranks; ++other) {
    if (ask.kind != CollectiveKind::all_to_all) {
      counts.push_back(share_of(ask, other));
    } else {
      counts.push_back(receives ? block_of(ask, other, rank, ranks) : block_of(ask, rank, other, ranks));
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

Bytes given(int rank, int call, std::size_t count, DataType type, bool exact) {
  // Every rank works out what all have given: a generator that costs little where sanitizers watch each access.
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
  if (!data.empty()) std::memcpy(touch(), data.data(), data.size());
}

std::string to_string(const Ask& ask) {
  return fmt::format("{}{} of {} {} {}{}", to_string(ask.kind), ask.uneven ? "_v" : "", ask.count, to_string(ask.type),
                     to_string(ask.op), ask.in_place ? " in place" : "");
}

std::size_t share_of(const Ask& ask, int rank) {
  if (!ask.uneven) return ask.count;
  const std::size_t parts[] = {3, 0, 4, 1, 2};  // of four
  return ask.count * parts[(rank + static_cast<int>(ask.count)) % 5] / 4;
}

std::size_t block_of(const Ask& ask, int from, int to, int ranks) {
  return ask.uneven ? share_of(ask, from * ranks + to) : ask.count;
}

Bytes input_of(const Ask& ask, int rank, int ranks, int call, bool exact) {
  const auto all = [&] {
    switch (ask.kind) {
      case CollectiveKind::reduce_scatter:
      case CollectiveKind::scatter:
      case CollectiveKind::all_to_all:
        return sum_to(counts_of(ask, ranks, rank, false), ranks);
      case CollectiveKind::all_gather:
      case CollectiveKind::gather:
        return share_of(ask, rank);
      default:
        return ask.count;
    }
  };
  const bool from_root = ask.kind == CollectiveKind::broadcast || ask.kind == CollectiveKind::scatter;
  return from_root && rank != ask.root ? Bytes() : given(rank, call, all(), ask.type, exact);
}

Bytes wanted_of(const Ask& ask, int rank, int ranks, int call, bool exact) {
  std::vector<Bytes> all;
  for (int r = 0; r < ranks; ++r) all.push_back(input_of(ask, r, ranks, call, exact));
  const std::vector<std::size_t> counts = counts_of(ask, ranks, rank, false);
  const std::size_t element_bytes = size_of(ask.type);
  const auto joined = [&] {
    Bytes result;
    for (const Bytes& each : all) result.insert(result.end(), each.begin(), each.end());
    return result;
  };
  switch (ask.kind) {
    case CollectiveKind::broadcast:
      return all[static_cast<std::size_t>(ask.root)];
    case CollectiveKind::all_gather:
      return joined();
    case CollectiveKind::gather:
      return rank == ask.root ? joined() : Bytes();
    case CollectiveKind::scatter:
      return cut(all[static_cast<std::size_t>(ask.root)], sum_to(counts, rank), share_of(ask, rank), element_bytes);
    case CollectiveKind::reduce_scatter:
      return cut(fold(all, ask.type, ask.op), sum_to(counts, rank), share_of(ask, rank), element_bytes);
    case CollectiveKind::all_to_all: {
      Bytes result;
      for (int from = 0; from < ranks; ++from) {
        const std::size_t before = sum_to(counts_of(ask, ranks, from, false), rank);
        const Bytes block = cut(all[static_cast<std::size_t>(from)], before, block_of(ask, from, rank, ranks), element_bytes);
        result.insert(result.end(), block.begin(), block.end());
      }
      return result;
    }
    case CollectiveKind::reduce:
      return rank == ask.root ? fold(all, ask.type, ask.op) : Bytes();
    default:
      return fold(all, ask.type, ask.op);
  }
}

Result<StreamWork> start(StreamRank& rank, const Ask& ask, const void* input, void* output) {
  StreamCommunicator& group = rank.group;
  const auto [kind, count, type, op, root, in_place, misalignment, uneven] = ask;
  const std::vector<std::size_t> counts = counts_of(ask, rank.size(), rank.rank(), false);
  const std::vector<std::size_t> receives = counts_of(ask, rank.size(), rank.rank(), true);
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

std::string check(StreamRank& rank, const Ask& ask, int call, bool exact, bool registers) {
  const int ranks = rank.size();
  const Bytes mine = input_of(ask, rank.rank(), ranks, call, exact);
  const Bytes wanted = wanted_of(ask, rank.rank(), ranks, call, exact);
  const bool deals_in = ask.kind == CollectiveKind::reduce_scatter || ask.kind == CollectiveKind::scatter;
  const bool deals_out = ask.kind == CollectiveKind::all_gather || ask.kind == CollectiveKind::gather;
  const std::size_t own = sum_to(counts_of(ask, ranks, rank.rank(), false), rank.rank()) * size_of(ask.type);
  const std::size_t most = std::max(mine.size(), wanted.size()) + own + 64;
  DeviceBuffer input(rank, most, ask.misalignment);
  DeviceBuffer output(rank, most, ask.misalignment);
  if (registers) {
    if (Status status = rank.group.register_buffer(input.get()); !status.ok()) return status.to_string();
  }
  std::byte* from = input.get();
  std::byte* to = output.get();
  if (ask.kind == CollectiveKind::broadcast || (ask.in_place && ask.kind != CollectiveKind::all_to_all)) {
    from = deals_out ? from + own : from;
    to = deals_in ? from + own : deals_out ? from - own : from;
  }
  if (!mine.empty()) std::memcpy(rank.cuda.touch(from), mine.data(), mine.size());
  const std::string what = fmt::format("{} (call {})", to_string(ask), call);
  // A rank that has no part in a side may pass anything there.
  const bool no_input = mine.empty() && ask.kind != CollectiveKind::broadcast && call % 2 == 0;
  const bool no_output = wanted.empty() && call % 2 == 0;
  Result<StreamWork> work = start(rank, ask, no_input ? nullptr : from, no_output ? nullptr : to);
  if (!work.ok()) return what + ": " + work.status().to_string();
  if (Status status = work->wait(); !status.ok()) return what + ": " + status.to_string();
  if (!work->is_completed()) return what + ": waited for and not completed";
  const std::byte* got = rank.cuda.touch(to);
  if (!holds(got, wanted)) {
    const auto at = std::mismatch(wanted.begin(), wanted.end(), got).second - got;
    return fmt::format("{}: byte {} of {} is wrong", what, at, wanted.size());
  }
  const bool apart = from != to && !(ask.in_place && (deals_in || deals_out));
  if (apart && !holds(rank.cuda.touch(from), mine)) return what + ": the input has changed";
  return "";
}

std::string all_kinds(StreamRank& rank, bool exact, bool registers) {
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
          const Ask ask{kind,
                        kind == CollectiveKind::barrier ? 0 : count,
                        DataType::float32,
                        ReduceOp::sum,
                        root,
                        in_place,
                        (count % 4) * 4,
                        uneven};
          if (std::string error = check(rank, ask, call++, exact, registers); !error.empty()) return error;
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
        const Ask ask{kind, count, type, op, call % rank.size()};
        if (std::string error = check(rank, ask, call++, exact, false); !error.empty()) return error;
      }
      const Ask moved{CollectiveKind::all_to_all, count / 10, type, op, 0, false, 1, call % 2 == 0};
      if (std::string error = check(rank, moved, call++, exact, false); !error.empty()) return error;
    }
  }
  return "";
}

}  // namespace shoal::testing
