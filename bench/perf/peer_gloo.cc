// Gloo as a peer of shoal_perf, through c10d::ProcessGroupGloo: with the version, threads and defaults of PyTorch.
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/version.h>
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <shoal/types.h>

#include "bench/perf/peer.h"

namespace {

using shoal::CollectiveKind;
using shoal::DataType;
using shoal::ReduceOp;

struct State {
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group;
  int rank = 0;
  int size = 1;
  std::string error;
};

State& state() {
  static State instance;
  return instance;
}

int fail(std::string message) {
  state().error = std::move(message);
  return 1;
}

/// Runs `body`; an exception becomes the last error.
template <typename Body>
int guarded(Body body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return fail(text.substr(0, text.find('\n')));  // the rest is a stack trace
  }
}

std::optional<at::ScalarType> torch_type(int type) {
  switch (static_cast<DataType>(type)) {
    case DataType::float32:
      return at::kFloat;
    case DataType::float64:
      return at::kDouble;
    case DataType::float16:
      return at::kHalf;
    case DataType::bfloat16:
      return at::kBFloat16;
    case DataType::int8:
      return at::kChar;
    case DataType::int32:
      return at::kInt;
    case DataType::int64:
      return at::kLong;
    case DataType::uint8:
      return at::kByte;
    default:
      return std::nullopt;
  }
}

std::optional<c10d::ReduceOp::RedOpType> torch_op(int op) {
  switch (static_cast<ReduceOp>(op)) {
    case ReduceOp::sum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::prod:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::min:
      return c10d::ReduceOp::MIN;
    case ReduceOp::max:
      return c10d::ReduceOp::MAX;
    case ReduceOp::band:
      return c10d::ReduceOp::BAND;
    case ReduceOp::bor:
      return c10d::ReduceOp::BOR;
    case ReduceOp::bxor:
      return c10d::ReduceOp::BXOR;
    case ReduceOp::avg:
      return std::nullopt;
  }
  return std::nullopt;
}

/// The tensor over a buffer. Cached across calls, as a training program keeps its own: making one costs a microsecond.
/// Returned by value, because the next call may move the cached ones.
at::Tensor tensor_of(const void* data, std::size_t count, int type) {
  using Key = std::tuple<const void*, std::size_t, int>;
  static std::vector<std::pair<Key, at::Tensor>> known;
  const Key key{data, count, type};
  for (auto& [each, tensor] : known) {
    if (each == key) return tensor;
  }
  constexpr std::size_t kMost = 8;
  if (known.size() == kMost) known.erase(known.begin());
  at::Tensor tensor =
      at::from_blob(const_cast<void*>(data), {static_cast<std::int64_t>(count)}, at::TensorOptions(*torch_type(type)));
  return known.emplace_back(key, std::move(tensor)).second;
}

const char* version() {
  static const std::string text = "of torch " TORCH_VERSION;
  return text.c_str();
}

/// The rendezvous store of Gloo's ranks: rank 0 serves it on a free port and sends its address to the other ranks.
c10::intrusive_ptr<c10d::Store> make_store(const shoal_peer_config& config) {
  struct Place {
    char host[256] = "127.0.0.1";
    int port = 0;
  } place;
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.numWorkers = config.size;
  options.waitWorkers = false;
  options.timeout = std::chrono::seconds(config.timeout_s);
  c10::intrusive_ptr<c10d::TCPStore> served;
  std::string problem;
  if (config.rank == 0) {
    if (config.host_address != nullptr) std::strncpy(place.host, config.host_address, sizeof place.host - 1);
    options.isServer = true;
    try {
      served = c10::make_intrusive<c10d::TCPStore>(place.host, options);
      place.port = served->getPort();
    } catch (const std::exception& error) {
      problem = error.what();
    }
  }
  if (config.exchange(config.exchange_context, &place, sizeof place, 0) != 0)
    throw std::runtime_error("the ranks cannot exchange addresses");
  if (place.port == 0) throw std::runtime_error("rank 0 could not serve a store: " + problem);
  if (config.rank == 0) return served;
  options.port = static_cast<std::uint16_t>(place.port);
  return c10::make_intrusive<c10d::TCPStore>(place.host, options);
}

int init(const shoal_peer_config* config) {
  return guarded([&] {
    state().rank = config->rank;
    state().size = config->size;
    auto store = make_store(*config);
    auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(config->timeout_s));
    options->devices.push_back(config->host_address != nullptr
                                   ? c10d::ProcessGroupGloo::createDeviceForHostname(config->host_address)
                                   : c10d::ProcessGroupGloo::createDefaultDevice());
    state().group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, config->rank, config->size, options);
  });
}

const char* why_unsupported(int collective, int type, int op, std::size_t count) {
  static_cast<void>(count);
  const auto kind = static_cast<CollectiveKind>(collective);
  if (kind == CollectiveKind::barrier) return nullptr;
  if (!torch_type(type)) return "c10d's Gloo has no such type";
  if (!shoal::reduces(kind)) return nullptr;
  if (!torch_op(op)) return "c10d's Gloo has no such operation";
  const bool bitwise = op >= static_cast<int>(ReduceOp::band);
  if (bitwise && c10::isFloatingType(*torch_type(type))) return "bitwise operations need an integer type";
  return nullptr;
}

/// One tensor for each rank's share of a buffer, as c10d's lists require.
std::vector<at::Tensor> shares_of(const void* data, std::size_t count, int type) {
  const std::size_t part_bytes = count * c10::elementSize(*torch_type(type));
  std::vector<at::Tensor> shares;
  for (int rank = 0; rank < state().size; ++rank) {
    const char* part = static_cast<const char*>(data) + static_cast<std::size_t>(rank) * part_bytes;
    shares.push_back(
        at::from_blob(const_cast<char*>(part), {static_cast<std::int64_t>(count)}, at::TensorOptions(*torch_type(type))));
  }
  return shares;
}

/// c10d reduces only in place: its users copy first for out of place, and so does this function.
void copy_to_output(const shoal_peer_call& call) {
  if (call.input != call.output) std::memcpy(call.output, call.input, call.count * c10::elementSize(*torch_type(call.type)));
}

void run_or_throw(const shoal_peer_call& call) {
  auto& group = *state().group;
  const bool is_root = state().rank == call.root;
  const std::size_t all = call.count * static_cast<std::size_t>(state().size);
  const auto one = [&](const void* data) { return std::vector<at::Tensor>{tensor_of(data, call.count, call.type)}; };
  switch (static_cast<CollectiveKind>(call.collective)) {
    case CollectiveKind::all_reduce: {
      copy_to_output(call);
      auto tensors = one(call.output);
      c10d::AllreduceOptions options;
      options.reduceOp = *torch_op(call.op);
      group.allreduce(tensors, options)->wait();
      return;
    }
    case CollectiveKind::broadcast: {
      auto tensors = one(call.output);
      c10d::BroadcastOptions options;
      options.rootRank = call.root;
      group.broadcast(tensors, options)->wait();
      return;
    }
    case CollectiveKind::all_gather: {
      std::vector<std::vector<at::Tensor>> outputs{shares_of(call.output, call.count, call.type)};
      auto inputs = one(call.input);
      group.allgather(outputs, inputs)->wait();
      return;
    }
    case CollectiveKind::reduce_scatter: {
      at::Tensor output = tensor_of(call.output, call.count, call.type);
      at::Tensor input = tensor_of(call.input, all, call.type);
      c10d::ReduceScatterOptions options;
      options.reduceOp = *torch_op(call.op);
      group._reduce_scatter_base(output, input, options)->wait();
      return;
    }
    case CollectiveKind::reduce: {
      copy_to_output(call);  // on every rank: Gloo accumulates in the tensors of all ranks
      auto tensors = one(call.output);
      c10d::ReduceOptions options;
      options.reduceOp = *torch_op(call.op);
      options.rootRank = call.root;
      group.reduce(tensors, options)->wait();
      return;
    }
    case CollectiveKind::gather: {
      std::vector<std::vector<at::Tensor>> outputs;
      if (is_root) outputs.push_back(shares_of(call.output, call.count, call.type));
      auto inputs = one(call.input);
      c10d::GatherOptions options;
      options.rootRank = call.root;
      group.gather(outputs, inputs, options)->wait();
      return;
    }
    case CollectiveKind::scatter: {
      std::vector<std::vector<at::Tensor>> inputs;
      if (is_root) inputs.push_back(shares_of(call.input, call.count, call.type));
      auto outputs = one(call.output);
      c10d::ScatterOptions options;
      options.rootRank = call.root;
      group.scatter(outputs, inputs, options)->wait();
      return;
    }
    case CollectiveKind::all_to_all: {
      at::Tensor output = tensor_of(call.output, all, call.type);
      at::Tensor input = tensor_of(call.input, all, call.type);
      std::vector<std::int64_t> equal;
      group.alltoall_base(output, input, equal, equal)->wait();
      return;
    }
    default:
      throw std::runtime_error("not a collective");
  }
}

int run(const shoal_peer_call* call) {
  return guarded([&] { run_or_throw(*call); });
}

int barrier() {
  return guarded([] { state().group->barrier()->wait(); });
}

int variants() { return 1; }
const char* variant_name(int variant) {
  static_cast<void>(variant);
  return "default";
}
int use_variant(int variant) {
  static_cast<void>(variant);
  return 0;
}
const char* last_error() { return state().error.c_str(); }
void finalize() { state().group.reset(); }

}  // namespace

extern "C" const shoal_peer* shoal_peer_get(void) {
  static const shoal_peer peer = {SHOAL_PEER_INTERFACE, "gloo",     "tcp",   version,  init,
                                  why_unsupported,      run,        barrier, variants, variant_name,
                                  use_variant,          last_error, finalize};
  return &peer;
}
