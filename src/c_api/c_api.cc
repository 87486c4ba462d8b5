// The C API: translates handles, ints and callbacks to the C++ interface and back. No exception leaves this file.
#include <shoal/shoal.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <shoal/communicator.h>
#include <shoal/memory.h>

#include "src/c_api/checks.h"

struct shoal_work {
  shoal::Work work;
};

namespace shoal {
namespace {

// The numbers of the C header are those of the C++ ones; a new entry there has to be added here.
static_assert(SHOAL_OK == static_cast<int>(StatusCode::ok));
static_assert(SHOAL_INVALID_ARGUMENT == static_cast<int>(StatusCode::invalid_argument));
static_assert(SHOAL_MISMATCH == static_cast<int>(StatusCode::mismatch));
static_assert(SHOAL_TIMEOUT == static_cast<int>(StatusCode::timeout));
static_assert(SHOAL_PEER_FAILED == static_cast<int>(StatusCode::peer_failed));
static_assert(SHOAL_ABORTED == static_cast<int>(StatusCode::aborted));
static_assert(SHOAL_SYSTEM_ERROR == static_cast<int>(StatusCode::system_error));
static_assert(SHOAL_UNSUPPORTED == static_cast<int>(StatusCode::unsupported));
static_assert(SHOAL_NOT_FOUND == static_cast<int>(StatusCode::not_found));
static_assert(SHOAL_INTERNAL == static_cast<int>(StatusCode::internal));

static_assert(SHOAL_FLOAT32 == static_cast<int>(DataType::float32));
static_assert(SHOAL_FLOAT64 == static_cast<int>(DataType::float64));
static_assert(SHOAL_FLOAT16 == static_cast<int>(DataType::float16));
static_assert(SHOAL_BFLOAT16 == static_cast<int>(DataType::bfloat16));
static_assert(SHOAL_INT8 == static_cast<int>(DataType::int8));
static_assert(SHOAL_INT16 == static_cast<int>(DataType::int16));
static_assert(SHOAL_INT32 == static_cast<int>(DataType::int32));
static_assert(SHOAL_INT64 == static_cast<int>(DataType::int64));
static_assert(SHOAL_UINT8 == static_cast<int>(DataType::uint8));
static_assert(SHOAL_UINT16 == static_cast<int>(DataType::uint16));
static_assert(SHOAL_UINT32 == static_cast<int>(DataType::uint32));
static_assert(SHOAL_UINT64 == static_cast<int>(DataType::uint64));
static_assert(SHOAL_FLOAT8_E4M3FN == static_cast<int>(DataType::float8_e4m3fn));
static_assert(SHOAL_FLOAT8_E5M2 == static_cast<int>(DataType::float8_e5m2));
static_assert(SHOAL_FLOAT8_E5M2 + 1 == kDataTypeCount);

static_assert(SHOAL_SUM == static_cast<int>(ReduceOp::sum));
static_assert(SHOAL_PROD == static_cast<int>(ReduceOp::prod));
static_assert(SHOAL_MIN == static_cast<int>(ReduceOp::min));
static_assert(SHOAL_MAX == static_cast<int>(ReduceOp::max));
static_assert(SHOAL_AVG == static_cast<int>(ReduceOp::avg));
static_assert(SHOAL_BAND == static_cast<int>(ReduceOp::band));
static_assert(SHOAL_BOR == static_cast<int>(ReduceOp::bor));
static_assert(SHOAL_BXOR == static_cast<int>(ReduceOp::bxor));
static_assert(SHOAL_BXOR + 1 == kReduceOpCount);

/// The value of shoal_last_error_message() in this thread. On the heap, because the library has a thread-local variable of the
/// initial-exec model: all thread-local variables together must fit into the few hundred bytes that a program reserves for
/// libraries that it loads at run time.
struct LastErrorMessage {
  static constexpr std::size_t kBytes = 2048;
  char* text = nullptr;
  ~LastErrorMessage() { delete[] std::exchange(text, nullptr); }
};
constinit thread_local LastErrorMessage last_error_message;

/// The environment's options, overridden by what `config` sets.
Result<CommunicatorOptions> options_of(const shoal_config* config) {
  CommunicatorOptions options = Communicator::options_from_environment();
  if (config == nullptr) return options;
  if (config->magic != SHOAL_CONFIG_MAGIC) return invalid("config: not initialised; start from SHOAL_CONFIG_INITIALIZER");
  // This is the first version of the struct, so there is no older, shorter one to accept yet. A longer struct may have fields
  // that this library does not know.
  if (config->size_bytes < sizeof(shoal_config))
    return invalid("config: size_bytes is too small; start from SHOAL_CONFIG_INITIALIZER");
  if (config->size_bytes > sizeof(shoal_config)) {
    return Status(StatusCode::unsupported, "config: made for shoal " + std::to_string(config->version) +
                                               ", newer than this library (" + std::to_string(SHOAL_VERSION) +
                                               "); update the library");
  }
  if (config->timeout_ms < 0)
    return invalid("config: timeout_ms is " + std::to_string(config->timeout_ms) + "; 0 or more is needed");
  if (config->timeout_ms > 0) options.timeout = clamped_ms(config->timeout_ms);
  if (config->algorithm != nullptr) options.algorithm = config->algorithm;
  if (config->transports != nullptr) options.transports = config->transports;
  return options;
}

/// The program's callbacks as a Store.
class CallbackStore final : public Store {
 public:
  explicit CallbackStore(const shoal_store& callbacks) : callbacks_(callbacks) {}

  Status set(std::string_view key, std::string_view value) override {
    const std::string name(key);
    return outcome("set", name, callbacks_.set(callbacks_.context, name.c_str(), value.data(), value.size()));
  }

  Result<std::string> get(std::string_view key, std::chrono::steady_clock::time_point deadline) override {
    const std::string name(key);
    std::string value(kFirstCapacityBytes, '\0');
    while (true) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      std::size_t size = 0;
      const Status status = outcome("get", name,
                                    callbacks_.get(callbacks_.context, name.c_str(), std::max<std::int64_t>(0, left.count()),
                                                   value.data(), value.size(), &size));
      if (!status.ok()) return status;
      if (size <= value.size()) {
        value.resize(size);
        return value;
      }
      if (size > kLimitBytes) {
        return Status(StatusCode::system_error, "store: the value of key '" + name + "' has " + std::to_string(size) +
                                                    " bytes; values are limited to " + std::to_string(kLimitBytes) + " bytes");
      }
      value.resize(size);
    }
  }

 private:
  static constexpr std::size_t kFirstCapacityBytes = 4096;
  static constexpr std::size_t kLimitBytes = std::size_t{64} << 20;

  static Status outcome(const char* call, const std::string& key, shoal_status status) {
    if (status == SHOAL_OK) return {};
    const bool known = status > 0 && status <= SHOAL_INTERNAL;
    const StatusCode code = known ? static_cast<StatusCode>(status) : StatusCode::system_error;
    return {code, std::string("store: ") + call + " of key '" + key + "' returned " + std::to_string(status)};
  }

  shoal_store callbacks_;
};

/// Passes the communicator of `created` to the caller.
Status deliver(Result<std::unique_ptr<Communicator>> created, shoal_comm_t* comm) {
  if (!created.ok()) return created.status();
  if (created.value() == nullptr) return {};  // a split with a negative color
  *comm = new shoal_comm{std::move(created).value()};
  return {};
}

/// The options of shoal_set_call_options() for this thread. Small, for the same reason as last_error_message.
struct ThreadCallOptions {
  std::int64_t timeout_ms = 0;
  const char* algorithm = nullptr;
};
constinit thread_local ThreadCallOptions thread_call_options;

}  // namespace

shoal_status report(StatusCode code, std::string_view message) noexcept {
  if (last_error_message.text == nullptr) last_error_message.text = new (std::nothrow) char[LastErrorMessage::kBytes];
  if (last_error_message.text == nullptr) return static_cast<shoal_status>(code);
  const std::size_t length = std::min(message.size(), LastErrorMessage::kBytes - 1);
  message.copy(last_error_message.text, length);
  last_error_message.text[length] = '\0';
  return static_cast<shoal_status>(code);
}
shoal_status report(const Status& status) noexcept { return status.ok() ? SHOAL_OK : report(status.code(), status.message()); }

CallOptions call_options() {
  CallOptions options;
  if (thread_call_options.timeout_ms > 0) options.timeout = clamped_ms(thread_call_options.timeout_ms);
  options.algorithm = thread_call_options.algorithm;
  return options;
}

namespace {

shoal_status submit(const Given<shoal_comm>& given, const Request& call) {
  return submit_checked(Checks(given.function), given, call,
                        [&](const Request& request) { return given.comm->communicator->submit(request, call_options()); });
}

shoal_status submit(const Given<shoal_comm>& given, const Request& call, shoal_work_t* work) {
  return submit_checked(Checks(given.function).out("work", work), given, call, [&](const Request& request) -> Status {
    auto started = given.comm->communicator->submit_async(request, call_options());
    if (!started.ok()) return started.status();
    *work = new shoal_work{std::move(started).value()};
    return {};
  });
}

}  // namespace
}  // namespace shoal

using namespace shoal;  // NOLINT(google-build-using-namespace): the functions below are the same library's other face

extern "C" {

int shoal_version(void) { return SHOAL_VERSION; }

const char* shoal_status_string(shoal_status status) {
  return to_string(static_cast<StatusCode>(status)).data();  // names are literals, so they end in a zero
}

const char* shoal_last_error_message(void) { return last_error_message.text == nullptr ? "" : last_error_message.text; }

shoal_status shoal_mem_alloc(size_t bytes, void** memory) {
  return guarded(Checks(__func__).not_null("memory", memory), [&]() -> Status {
    Result<void*> allocated = shoal::mem_alloc(bytes);
    *memory = allocated.ok() ? *allocated : nullptr;
    return allocated.ok() ? Status() : allocated.status();
  });
}

shoal_status shoal_mem_free(void* memory) {
  return guarded(Checks(__func__), [&] { return shoal::mem_free(memory); });
}

size_t shoal_data_type_size(shoal_data_type type) {
  return type >= 0 && type < kDataTypeCount ? size_of(static_cast<DataType>(type)) : 0;
}

shoal_status shoal_comm_create(const shoal_config* config, shoal_comm_t* comm) {
  return guarded(Checks(__func__).out("comm", comm), [&]() -> Status {
    auto options = options_of(config);
    if (!options.ok()) return options.status();
    return deliver(Communicator::create(std::move(options).value()), comm);
  });
}

shoal_status shoal_comm_create_with_store(const shoal_store* store, int rank, int size, const shoal_config* config,
                                          shoal_comm_t* comm) {
  return guarded(Checks(__func__).out("comm", comm).not_null("store", store), [&]() -> Status {
    if (store->set == nullptr || store->get == nullptr)
      return invalid("shoal_comm_create_with_store: set or get of the store is NULL");
    auto options = options_of(config);
    if (!options.ok()) return options.status();
    CallbackStore callbacks(*store);
    return deliver(Communicator::create(callbacks, rank, size, std::move(options).value()), comm);
  });
}

shoal_status shoal_comm_split(shoal_comm_t comm, int color, int key, shoal_comm_t* group) {
  return guarded(Checks(__func__).out("group", group).not_null("comm", comm),
                 [&] { return deliver(comm->communicator->split(color, key), group); });
}

shoal_status shoal_comm_group(shoal_comm_t comm, const int* ranks, size_t count, shoal_comm_t* group) {
  return guarded(Checks(__func__).out("group", group).not_null("comm", comm).not_null("ranks", ranks),
                 [&] { return deliver(comm->communicator->group(std::span(ranks, count)), group); });
}

shoal_status shoal_comm_shrink(shoal_comm_t comm, const int* without, size_t count, int64_t timeout_ms, shoal_comm_t* left) {
  Checks checks(__func__);
  checks.out("left", left).not_null("comm", comm);
  if (count != 0) checks.not_null("without", without);
  return guarded(checks, [&] {
    const auto timeout =
        timeout_ms == 0 ? std::nullopt : std::optional<std::chrono::milliseconds>(std::chrono::milliseconds(timeout_ms));
    return deliver(comm->communicator->shrink(std::span(without, count), timeout), left);
  });
}

void shoal_comm_destroy(shoal_comm_t comm) { delete comm; }

shoal_status shoal_comm_abort(shoal_comm_t comm, const char* reason) {
  return guarded(Checks(__func__).not_null("comm", comm), [&]() -> Status {
    comm->communicator->abort(reason == nullptr ? "no reason given" : reason);
    return {};
  });
}

shoal_status shoal_comm_status(shoal_comm_t comm) {
  return guarded(Checks(__func__).not_null("comm", comm), [&] { return comm->communicator->status(); });
}

shoal_status shoal_comm_rank(shoal_comm_t comm, int* rank) {
  return guarded(Checks(__func__).not_null("comm", comm).not_null("rank", rank), [&]() -> Status {
    *rank = comm->communicator->rank();
    return {};
  });
}

shoal_status shoal_comm_size(shoal_comm_t comm, int* size) {
  return guarded(Checks(__func__).not_null("comm", comm).not_null("size", size), [&]() -> Status {
    *size = comm->communicator->size();
    return {};
  });
}

shoal_status shoal_set_call_options(const shoal_call_options* options) {
  return guarded(Checks(__func__), [&]() -> Status {
    const shoal_call_options unset = SHOAL_CALL_OPTIONS_INITIALIZER;
    const shoal_call_options& wanted = options == nullptr ? unset : *options;
    if (wanted.magic != SHOAL_CONFIG_MAGIC || wanted.size_bytes < sizeof wanted)
      return invalid("call options: not initialised; start from SHOAL_CALL_OPTIONS_INITIALIZER");
    if (wanted.size_bytes > sizeof wanted)
      return {StatusCode::unsupported, "call options: made for a newer shoal than this library; update the library"};
    if (wanted.timeout_ms < 0)
      return invalid("call options: timeout_ms is " + std::to_string(wanted.timeout_ms) + "; 0 or more is needed");
    const bool forced = wanted.algorithm != nullptr && *wanted.algorithm != '\0';
    thread_call_options = {wanted.timeout_ms, forced ? wanted.algorithm : nullptr};
    return {};
  });
}

// In the Requests {} stands for the type and the operation, which submit_checked() fills in.
shoal_status shoal_all_reduce(shoal_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type,
                              shoal_reduce_op op) {
  return submit({__func__, comm, type, op}, Request::all_reduce(input, output, count, {}, {}));
}
shoal_status shoal_all_reduce_async(shoal_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type,
                                    shoal_reduce_op op, shoal_work_t* work) {
  return submit({__func__, comm, type, op}, Request::all_reduce(input, output, count, {}, {}), work);
}
shoal_status shoal_broadcast(shoal_comm_t comm, void* buffer, size_t count, shoal_data_type type, int root) {
  return submit({__func__, comm, type}, Request::broadcast(buffer, count, {}, root));
}
shoal_status shoal_broadcast_async(shoal_comm_t comm, void* buffer, size_t count, shoal_data_type type, int root,
                                   shoal_work_t* work) {
  return submit({__func__, comm, type}, Request::broadcast(buffer, count, {}, root), work);
}
shoal_status shoal_all_gather(shoal_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type) {
  return submit({__func__, comm, type}, Request::all_gather(input, output, count, {}));
}
shoal_status shoal_all_gather_async(shoal_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type,
                                    shoal_work_t* work) {
  return submit({__func__, comm, type}, Request::all_gather(input, output, count, {}), work);
}
shoal_status shoal_reduce_scatter(shoal_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type,
                                  shoal_reduce_op op) {
  return submit({__func__, comm, type, op}, Request::reduce_scatter(input, output, count, {}, {}));
}
shoal_status shoal_reduce_scatter_async(shoal_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type,
                                        shoal_reduce_op op, shoal_work_t* work) {
  return submit({__func__, comm, type, op}, Request::reduce_scatter(input, output, count, {}, {}), work);
}
shoal_status shoal_reduce_scatter_v(shoal_comm_t comm, const void* input, void* output, const size_t* counts,
                                    shoal_data_type type, shoal_reduce_op op) {
  return submit({__func__, comm, type, op}, Request::reduce_scatter_v(input, output, counts_at(counts), {}, {}));
}
shoal_status shoal_reduce_scatter_v_async(shoal_comm_t comm, const void* input, void* output, const size_t* counts,
                                          shoal_data_type type, shoal_reduce_op op, shoal_work_t* work) {
  return submit({__func__, comm, type, op}, Request::reduce_scatter_v(input, output, counts_at(counts), {}, {}), work);
}
shoal_status shoal_all_gather_v(shoal_comm_t comm, const void* input, void* output, const size_t* counts,
                                shoal_data_type type) {
  return submit({__func__, comm, type}, Request::all_gather_v(input, output, counts_at(counts), {}));
}
shoal_status shoal_all_gather_v_async(shoal_comm_t comm, const void* input, void* output, const size_t* counts,
                                      shoal_data_type type, shoal_work_t* work) {
  return submit({__func__, comm, type}, Request::all_gather_v(input, output, counts_at(counts), {}), work);
}
shoal_status shoal_reduce(shoal_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type,
                          shoal_reduce_op op, int root) {
  return submit({__func__, comm, type, op}, Request::reduce(input, output, count, {}, {}, root));
}
shoal_status shoal_reduce_async(shoal_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type,
                                shoal_reduce_op op, int root, shoal_work_t* work) {
  return submit({__func__, comm, type, op}, Request::reduce(input, output, count, {}, {}, root), work);
}
shoal_status shoal_gather(shoal_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type, int root) {
  return submit({__func__, comm, type}, Request::gather(input, output, count, {}, root));
}
shoal_status shoal_gather_async(shoal_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type,
                                int root, shoal_work_t* work) {
  return submit({__func__, comm, type}, Request::gather(input, output, count, {}, root), work);
}
shoal_status shoal_gather_v(shoal_comm_t comm, const void* input, void* output, const size_t* counts, shoal_data_type type,
                            int root) {
  return submit({__func__, comm, type}, Request::gather_v(input, output, counts_at(counts), {}, root));
}
shoal_status shoal_gather_v_async(shoal_comm_t comm, const void* input, void* output, const size_t* counts,
                                  shoal_data_type type, int root, shoal_work_t* work) {
  return submit({__func__, comm, type}, Request::gather_v(input, output, counts_at(counts), {}, root), work);
}
shoal_status shoal_scatter(shoal_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type, int root) {
  return submit({__func__, comm, type}, Request::scatter(input, output, count, {}, root));
}
shoal_status shoal_scatter_async(shoal_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type,
                                 int root, shoal_work_t* work) {
  return submit({__func__, comm, type}, Request::scatter(input, output, count, {}, root), work);
}
shoal_status shoal_scatter_v(shoal_comm_t comm, const void* input, void* output, const size_t* counts, shoal_data_type type,
                             int root) {
  return submit({__func__, comm, type}, Request::scatter_v(input, output, counts_at(counts), {}, root));
}
shoal_status shoal_scatter_v_async(shoal_comm_t comm, const void* input, void* output, const size_t* counts,
                                   shoal_data_type type, int root, shoal_work_t* work) {
  return submit({__func__, comm, type}, Request::scatter_v(input, output, counts_at(counts), {}, root), work);
}
shoal_status shoal_all_to_all(shoal_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type) {
  return submit({__func__, comm, type}, Request::all_to_all(input, output, count, {}));
}
shoal_status shoal_all_to_all_async(shoal_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type,
                                    shoal_work_t* work) {
  return submit({__func__, comm, type}, Request::all_to_all(input, output, count, {}), work);
}
shoal_status shoal_all_to_all_v(shoal_comm_t comm, const void* input, const size_t* send_counts, void* output,
                                const size_t* receive_counts, shoal_data_type type) {
  return submit({__func__, comm, type},
                Request::all_to_all_v(input, counts_at(send_counts), output, counts_at(receive_counts), {}));
}
shoal_status shoal_all_to_all_v_async(shoal_comm_t comm, const void* input, const size_t* send_counts, void* output,
                                      const size_t* receive_counts, shoal_data_type type, shoal_work_t* work) {
  return submit({__func__, comm, type},
                Request::all_to_all_v(input, counts_at(send_counts), output, counts_at(receive_counts), {}), work);
}

shoal_status shoal_barrier(shoal_comm_t comm) { return submit({__func__, comm}, Request::barrier()); }

shoal_status shoal_barrier_async(shoal_comm_t comm, shoal_work_t* work) {
  return submit({__func__, comm}, Request::barrier(), work);
}
shoal_status shoal_send(shoal_comm_t comm, const void* buffer, size_t count, shoal_data_type type, int peer, int tag) {
  return submit({__func__, comm, type}, Request::send(buffer, count, {}, peer, tag));
}
shoal_status shoal_send_async(shoal_comm_t comm, const void* buffer, size_t count, shoal_data_type type, int peer, int tag,
                              shoal_work_t* work) {
  return submit({__func__, comm, type}, Request::send(buffer, count, {}, peer, tag), work);
}
shoal_status shoal_recv(shoal_comm_t comm, void* buffer, size_t count, shoal_data_type type, int peer, int tag) {
  return submit({__func__, comm, type}, Request::recv(buffer, count, {}, peer, tag));
}
shoal_status shoal_recv_async(shoal_comm_t comm, void* buffer, size_t count, shoal_data_type type, int peer, int tag,
                              shoal_work_t* work) {
  return submit({__func__, comm, type}, Request::recv(buffer, count, {}, peer, tag), work);
}

void shoal_group_begin(void) { Communicator::group_begin(); }

shoal_status shoal_group_end(void) {
  return guarded(Checks(__func__), [] { return Communicator::group_end(); });
}

shoal_status shoal_work_source(shoal_work_t work, int* source) {
  return guarded(Checks(__func__).not_null("work", work).not_null("source", source), [&]() -> Status {
    *source = work->work.source();
    return {};
  });
}

shoal_status shoal_work_wait(shoal_work_t work) {
  return guarded(Checks(__func__).not_null("work", work), [&] { return work->work.wait(); });
}

shoal_status shoal_work_wait_for(shoal_work_t work, int64_t timeout_ms) {
  return guarded(Checks(__func__).not_null("work", work).not_negative("timeout_ms", timeout_ms),
                 [&] { return work->work.wait_for(clamped_ms(timeout_ms)); });
}

shoal_status shoal_work_test(shoal_work_t work, int* completed) {
  return guarded(Checks(__func__).not_null("work", work).not_null("completed", completed), [&] {
    *completed = work->work.is_completed() ? 1 : 0;
    return *completed != 0 ? work->work.status() : Status();
  });
}

void shoal_work_free(shoal_work_t work) { delete work; }

}  // extern "C"
