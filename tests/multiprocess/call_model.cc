#include "tests/multiprocess/call_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>

#include <fmt/format.h>

#include "src/schedule/layout.h"
#include "tests/unit/device_reference.h"

namespace shoal::testing {
namespace {

constexpr std::size_t kBorderBytes = 64;
constexpr std::byte kUntouched{0xAB};

std::size_t sum(std::span<const std::size_t> numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::size_t{0});
}

/// Element `i` of the input of `rank`.
double value(const ModelCall& call, int rank, std::size_t i) {
  std::uint64_t x = call.id * 0x9E3779B97F4A7C15ULL + static_cast<std::uint64_t>(rank) * 0xD1B54A32D192ED03ULL + i;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  x ^= x >> 31;
  if (call.op == ReduceOp::prod) return static_cast<double>(1 + x % 2);
  // Sums of six ranks that two bits of fraction hold exactly.
  if (is_floating(call.type) && size_of(call.type) == 1) return static_cast<double>(x % 2);
  return static_cast<double>(x % 12);
}

void put(DataType type, double number, std::byte* at) {
  const auto store = [&](auto typed) { std::memcpy(at, &typed, sizeof typed); };
  switch (type) {
    case DataType::float32:
      return store(static_cast<float>(number));
    case DataType::float64:
      return store(number);
    case DataType::float16:
      return store(reference::Float16::encode(number).bits);
    case DataType::bfloat16:
      return store(reference::Bfloat16::encode(number).bits);
    case DataType::float8_e4m3fn:
      return store(reference::Float8E4M3Fn::encode(number).bits);
    case DataType::float8_e5m2:
      return store(reference::Float8E5M2::encode(number).bits);
    default:
      break;
  }
  const auto integer = static_cast<std::int64_t>(number);  // little-endian: the low bytes come first
  std::memcpy(at, &integer, size_of(type));
}

/// The reduction over all ranks of their element `i`.
double reduced(const ModelCall& call, std::size_t i) {
  double result = value(call, 0, i);
  const auto bits = [](double a) { return static_cast<std::int64_t>(a); };
  for (int rank = 1; rank < call.ranks; ++rank) {
    const double next = value(call, rank, i);
    switch (call.op) {
      case ReduceOp::prod:
        result *= next;
        break;
      case ReduceOp::min:
        result = std::min(result, next);
        break;
      case ReduceOp::max:
        result = std::max(result, next);
        break;
      case ReduceOp::band:
        result = static_cast<double>(bits(result) & bits(next));
        break;
      case ReduceOp::bor:
        result = static_cast<double>(bits(result) | bits(next));
        break;
      case ReduceOp::bxor:
        result = static_cast<double>(bits(result) ^ bits(next));
        break;
      default:
        result += next;
    }
  }
  if (call.op != ReduceOp::avg) return result;
  if (!is_floating(call.type)) return std::trunc(result / call.ranks);
  return call.type == DataType::float64 ? result / call.ranks : static_cast<float>(result) / static_cast<float>(call.ranks);
}

std::size_t share(const ModelCall& call, int rank) {
  return call.shares.empty() ? call.count : call.shares[static_cast<std::size_t>(rank)];
}
/// Elements before the share of `rank`.
std::size_t before(const ModelCall& call, int rank) {
  std::size_t elements = 0;
  for (int r = 0; r < rank; ++r) elements += share(call, r);
  return elements;
}
/// The share from rank `from` to rank `to` in an all_to_all, and the number of elements before it.
std::size_t block(const ModelCall& call, int from, int to) {
  return call.shares.empty() ? call.count : call.shares[static_cast<std::size_t>(from * call.ranks + to)];
}
std::size_t before_block(const ModelCall& call, int from, int to) {
  std::size_t elements = 0;
  for (int r = 0; r < to; ++r) elements += block(call, from, r);
  return elements;
}

struct Elements {
  std::size_t input = 0;
  std::size_t output = 0;
};

Elements elements_of(const ModelCall& call, int rank) {
  const bool is_root = rank == call.root;
  const std::size_t all = deals_in_shares(call.kind) ? before(call, call.ranks) : call.count;
  switch (call.kind) {
    case CollectiveKind::all_reduce:
      return {all, all};
    case CollectiveKind::broadcast:
      return {0, all};
    case CollectiveKind::all_gather:
      return {share(call, rank), all};
    case CollectiveKind::reduce_scatter:
      return {all, share(call, rank)};
    case CollectiveKind::reduce:
      return {all, is_root ? all : 0};
    case CollectiveKind::gather:
      return {share(call, rank), is_root ? all : 0};
    case CollectiveKind::scatter:
      return {is_root ? all : 0, share(call, rank)};
    case CollectiveKind::all_to_all: {
      std::size_t received = 0;
      for (int from = 0; from < call.ranks; ++from) received += block(call, from, rank);
      return {before_block(call, rank, call.ranks), received};
    }
    default:
      return {};
  }
}

/// What the output of `rank` must be.
std::vector<double> expected(const ModelCall& call, int rank) {
  std::vector<double> all;
  const auto append = [&](int from, std::size_t first, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) all.push_back(value(call, from, first + i));
  };
  const std::size_t count = elements_of(call, rank).output;
  switch (call.kind) {
    case CollectiveKind::all_reduce:
    case CollectiveKind::reduce:
      for (std::size_t i = 0; i < count; ++i) all.push_back(reduced(call, i));
      break;
    case CollectiveKind::reduce_scatter:
      for (std::size_t i = 0; i < count; ++i) all.push_back(reduced(call, before(call, rank) + i));
      break;
    case CollectiveKind::broadcast:
      append(call.root, 0, count);
      break;
    case CollectiveKind::scatter:
      append(call.root, before(call, rank), count);
      break;
    case CollectiveKind::all_gather:
    case CollectiveKind::gather:
      for (int from = 0; from < call.ranks && count > 0; ++from) append(from, 0, share(call, from));
      break;
    case CollectiveKind::all_to_all:
      for (int from = 0; from < call.ranks; ++from) append(from, before_block(call, from, rank), block(call, from, rank));
      break;
    default:
      break;
  }
  return all;
}

}  // namespace

Collective ModelCall::collective(int rank, std::vector<std::size_t>& counts) const {
  Collective result{kind, count, type, op, has_root(kind) ? root : 0, {}};
  if (shares.empty()) return result;
  counts = shares;
  result.count = sum(shares);
  if (kind == CollectiveKind::all_to_all) {
    counts.clear();
    for (int to = 0; to < ranks; ++to) counts.push_back(block(*this, rank, to));
    result.count = sum(counts);
    for (int from = 0; from < ranks; ++from) counts.push_back(block(*this, from, rank));
  }
  result.counts = counts;
  return result;
}

std::string ModelCall::text() const {
  std::vector<std::size_t> counts;
  return fmt::format("{}{}{}", to_string(collective(0, counts)), in_place ? " in place" : "", async ? " async" : "");
}

ModelCall random_call(std::mt19937_64& random, int ranks, std::size_t max_count) {
  const auto pick = [&](std::uint64_t low, std::uint64_t high) { return low + random() % (high - low + 1); };
  ModelCall call;
  call.id = random();
  call.ranks = ranks;
  do {
    call.kind = static_cast<CollectiveKind>(pick(0, kCollectiveKindCount - 1));
  } while (call.kind == CollectiveKind::barrier);
  do {
    call.type = static_cast<DataType>(pick(0, kDataTypeCount - 1));
    call.op = static_cast<ReduceOp>(pick(0, kReduceOpCount - 1));
  } while (!supports(call.type, call.op));
  if (!reduces(call.kind)) call.op = ReduceOp::sum;
  call.root = static_cast<int>(pick(0, static_cast<std::uint64_t>(ranks) - 1));
  call.in_place = call.kind != CollectiveKind::all_to_all && pick(0, 2) == 0;
  call.async = pick(0, 1) == 0;
  // Mostly small, now and then large.
  const auto size = [&](std::size_t most) {
    return pick(0, 3) == 0 ? pick(0, most) : pick(0, std::min<std::size_t>(most, 40));
  };
  const auto p = static_cast<std::size_t>(ranks);
  const std::size_t parts = call.kind == CollectiveKind::all_to_all ? p * p : deals_in_shares(call.kind) ? p : 1;
  call.count = size(max_count / parts);
  if (parts > 1 && pick(0, 1) == 0) {
    for (std::size_t i = 0; i < parts; ++i) call.shares.push_back(pick(0, 2) == 0 ? 0 : size(max_count / parts));
    call.count = 0;
  }
  return call;
}

ModelBuffers::ModelBuffers(const ModelCall& call, int rank) : call_(call), rank_(rank) {
  const std::size_t element = size_of(call.type);
  const Elements elements = elements_of(call, rank);
  const bool takes_both = elements.input > 0 && elements.output > 0;
  in_place_ = call.in_place && takes_both && call.kind != CollectiveKind::broadcast;
  const std::size_t larger = std::max(elements.input, elements.output);
  output_memory_.assign(2 * kBorderBytes + (in_place_ ? larger : elements.output) * element, kUntouched);
  if (!in_place_) input_memory_.resize(elements.input * element);
  output_ = output_memory_.data() + kBorderBytes;
  auto* input = in_place_ ? output_ : input_memory_.data();
  if (in_place_ && deals_in_shares(call.kind)) {
    const std::size_t offset = before(call, rank) * element;
    const bool shares_come_in = call.kind == CollectiveKind::all_gather || call.kind == CollectiveKind::gather;
    (shares_come_in ? input : output_) += offset;
  }
  for (std::size_t i = 0; i < elements.input; ++i) put(call.type, value(call, rank, i), input + i * element);
  if (call.kind == CollectiveKind::broadcast && rank == call.root) {
    for (std::size_t i = 0; i < call.count; ++i) put(call.type, value(call, rank, i), output_ + i * element);
  }
  input_before_ = input_memory_;
  input_ = elements.input > 0 ? input : nullptr;
  if (elements.output == 0) output_ = nullptr;
}

std::string ModelBuffers::check() const {
  if (input_memory_ != input_before_) return "the input was changed";
  const std::size_t element = size_of(call_.type);
  const std::vector<double> wanted = expected(call_, rank_);
  std::vector<std::byte> bytes(wanted.size() * element);
  for (std::size_t i = 0; i < wanted.size(); ++i) put(call_.type, wanted[i], bytes.data() + i * element);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (std::memcmp(output_ + i * element, bytes.data() + i * element, element) != 0)
      return fmt::format("element {} of {} is not {}", i, wanted.size(), wanted[i]);
  }
  const auto untouched = [](std::span<const std::byte> border) {
    return std::ranges::all_of(border, [](std::byte byte) { return byte == kUntouched; });
  };
  const std::span all(output_memory_);
  if (!untouched(all.first(kBorderBytes)) || !untouched(all.last(kBorderBytes)))
    return "something was written beside the output";
  return {};
}

Result<Work> make_call(Communicator& c, const ModelCall& call, const ModelBuffers& buffers) {
  std::vector<std::size_t> counts;
  const Collective what = call.collective(c.rank(), counts);
  const void* in = buffers.input();
  void* out = buffers.output();
  const bool uneven = !call.shares.empty();
  const std::span<const std::size_t> shares(call.shares);
  const std::span<const std::size_t> all_counts(counts);
  const auto p = static_cast<std::size_t>(call.ranks);
  const auto ended = [](Status status) { return status.ok() ? Result<Work>(Work()) : Result<Work>(std::move(status)); };
  switch (call.kind) {
    case CollectiveKind::all_reduce:
      if (call.async) return c.all_reduce_async(in, out, what.count, call.type, call.op);
      return ended(c.all_reduce(in, out, what.count, call.type, call.op));
    case CollectiveKind::broadcast:
      if (call.async) return c.broadcast_async(out, what.count, call.type, call.root);
      return ended(c.broadcast(out, what.count, call.type, call.root));
    case CollectiveKind::all_gather:
      if (uneven && call.async) return c.all_gather_v_async(in, out, shares, call.type);
      if (uneven) return ended(c.all_gather_v(in, out, shares, call.type));
      if (call.async) return c.all_gather_async(in, out, what.count, call.type);
      return ended(c.all_gather(in, out, what.count, call.type));
    case CollectiveKind::reduce_scatter:
      if (uneven && call.async) return c.reduce_scatter_v_async(in, out, shares, call.type, call.op);
      if (uneven) return ended(c.reduce_scatter_v(in, out, shares, call.type, call.op));
      if (call.async) return c.reduce_scatter_async(in, out, what.count, call.type, call.op);
      return ended(c.reduce_scatter(in, out, what.count, call.type, call.op));
    case CollectiveKind::reduce:
      if (call.async) return c.reduce_async(in, out, what.count, call.type, call.op, call.root);
      return ended(c.reduce(in, out, what.count, call.type, call.op, call.root));
    case CollectiveKind::gather:
      if (uneven && call.async) return c.gather_v_async(in, out, shares, call.type, call.root);
      if (uneven) return ended(c.gather_v(in, out, shares, call.type, call.root));
      if (call.async) return c.gather_async(in, out, what.count, call.type, call.root);
      return ended(c.gather(in, out, what.count, call.type, call.root));
    case CollectiveKind::scatter:
      if (uneven && call.async) return c.scatter_v_async(in, out, shares, call.type, call.root);
      if (uneven) return ended(c.scatter_v(in, out, shares, call.type, call.root));
      if (call.async) return c.scatter_async(in, out, what.count, call.type, call.root);
      return ended(c.scatter(in, out, what.count, call.type, call.root));
    case CollectiveKind::all_to_all:
      if (uneven && call.async) return c.all_to_all_v_async(in, all_counts.first(p), out, all_counts.last(p), call.type);
      if (uneven) return ended(c.all_to_all_v(in, all_counts.first(p), out, all_counts.last(p), call.type));
      if (call.async) return c.all_to_all_async(in, out, what.count, call.type);
      return ended(c.all_to_all(in, out, what.count, call.type));
    default:
      return Status(StatusCode::internal, "not a call that the model knows");
  }
}

}  // namespace shoal::testing
