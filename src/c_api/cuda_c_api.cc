// The C API of collectives on CUDA streams; see c_api.cc.
#include <shoal/shoal_cuda.h>

#include <memory>
#include <utility>
#include <vector>

#include <shoal/cuda.h>

#include "src/c_api/checks.h"

struct shoal_stream_comm {
  std::unique_ptr<shoal::StreamCommunicator> communicator;
  int ranks = 0;
};

struct shoal_stream_work {
  shoal::StreamWork work;
};

namespace shoal {
namespace {

/// The checks of every call on a stream; `work` may be null.
Checks checks_of(const char* function, shoal_stream_comm_t comm, shoal_stream_work_t* work) noexcept {
  if (work != nullptr) *work = nullptr;
  Checks checks(function);
  checks.not_null("comm", comm);
  return checks;
}

/// Passes the work of `started` to the caller, unless `work` is null.
Status deliver(Result<StreamWork> started, shoal_stream_work_t* work) {
  if (!started.ok()) return started.status();
  if (work != nullptr) *work = new shoal_stream_work{std::move(started).value()};
  return {};
}

Result<StreamOptions> options_of(const shoal_stream_config* config) {
  StreamOptions options;
  if (config == nullptr) return options;
  if (config->magic != SHOAL_STREAM_CONFIG_MAGIC)
    return invalid("config: not initialised; start from SHOAL_STREAM_CONFIG_INITIALIZER");
  if (config->size_bytes < sizeof(shoal_stream_config))
    return invalid("config: size_bytes is too small; start from SHOAL_STREAM_CONFIG_INITIALIZER");
  if (config->size_bytes > sizeof(shoal_stream_config)) {
    return Status(StatusCode::unsupported, "config: made for shoal " + std::to_string(config->version) +
                                               ", newer than this library (" + std::to_string(SHOAL_VERSION) +
                                               "); update the library");
  }
  options.staging_bytes = config->staging_bytes;
  options.max_processors = config->max_processors;
  options.kernels_run_together = config->kernels_run_together != 0;
  return options;
}

shoal_status submit(const Given<shoal_stream_comm>& given, const Request& call, void* stream, shoal_stream_work_t* work) {
  if (work != nullptr) *work = nullptr;
  return submit_checked(Checks(given.function), given, call, [&](const Request& request) {
    return deliver(given.comm->communicator->submit(request, stream, call_options().timeout), work);
  });
}

}  // namespace
}  // namespace shoal

using namespace shoal;  // NOLINT(google-build-using-namespace): the functions below are the same library's other face

extern "C" {

shoal_status shoal_cuda_available(void) {
  return guarded(Checks(__func__), [] { return cuda_available(); });
}

shoal_status shoal_stream_comm_create(shoal_comm_t host, const shoal_stream_config* config, shoal_stream_comm_t* comm) {
  return guarded(Checks(__func__).out("comm", comm).not_null("host", host), [&]() -> Status {
    const auto options = options_of(config);
    if (!options.ok()) return options.status();
    auto created = StreamCommunicator::create(*host->communicator, *options);
    if (!created.ok()) return created.status();
    *comm = new shoal_stream_comm{std::move(created).value(), host->communicator->size()};
    return {};
  });
}

void shoal_stream_comm_destroy(shoal_stream_comm_t comm) { delete comm; }

shoal_status shoal_stream_comm_abort(shoal_stream_comm_t comm, const char* reason) {
  return guarded(Checks(__func__).not_null("comm", comm), [&]() -> Status {
    comm->communicator->abort(reason == nullptr ? "shoal_stream_comm_abort" : reason);
    return {};
  });
}

shoal_status shoal_stream_comm_status(shoal_stream_comm_t comm) {
  return guarded(Checks(__func__).not_null("comm", comm), [&] { return comm->communicator->status(); });
}

shoal_status shoal_stream_register_buffer(shoal_stream_comm_t comm, const void* buffer) {
  return guarded(Checks(__func__).not_null("comm", comm), [&] { return comm->communicator->register_buffer(buffer); });
}

shoal_status shoal_stream_deregister_buffer(shoal_stream_comm_t comm, const void* buffer) {
  return guarded(Checks(__func__).not_null("comm", comm), [&] { return comm->communicator->deregister_buffer(buffer); });
}

// In the Requests {} stands for the type and the operation, which submit_checked() fills in.
shoal_status shoal_stream_all_reduce(shoal_stream_comm_t comm, const void* input, void* output, size_t count,
                                     shoal_data_type type, shoal_reduce_op op, void* stream, shoal_stream_work_t* work) {
  return submit({__func__, comm, type, op}, Request::all_reduce(input, output, count, {}, {}), stream, work);
}
shoal_status shoal_stream_broadcast(shoal_stream_comm_t comm, void* buffer, size_t count, shoal_data_type type, int root,
                                    void* stream, shoal_stream_work_t* work) {
  return submit({__func__, comm, type}, Request::broadcast(buffer, count, {}, root), stream, work);
}
shoal_status shoal_stream_all_gather(shoal_stream_comm_t comm, const void* input, void* output, size_t count,
                                     shoal_data_type type, void* stream, shoal_stream_work_t* work) {
  return submit({__func__, comm, type}, Request::all_gather(input, output, count, {}), stream, work);
}
shoal_status shoal_stream_all_gather_v(shoal_stream_comm_t comm, const void* input, void* output, const size_t* counts,
                                       shoal_data_type type, void* stream, shoal_stream_work_t* work) {
  return submit({__func__, comm, type}, Request::all_gather_v(input, output, counts_at(counts), {}), stream, work);
}
shoal_status shoal_stream_reduce_scatter(shoal_stream_comm_t comm, const void* input, void* output, size_t count,
                                         shoal_data_type type, shoal_reduce_op op, void* stream, shoal_stream_work_t* work) {
  return submit({__func__, comm, type, op}, Request::reduce_scatter(input, output, count, {}, {}), stream, work);
}
shoal_status shoal_stream_reduce_scatter_v(shoal_stream_comm_t comm, const void* input, void* output, const size_t* counts,
                                           shoal_data_type type, shoal_reduce_op op, void* stream, shoal_stream_work_t* work) {
  return submit({__func__, comm, type, op}, Request::reduce_scatter_v(input, output, counts_at(counts), {}, {}), stream, work);
}
shoal_status shoal_stream_reduce(shoal_stream_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type,
                                 shoal_reduce_op op, int root, void* stream, shoal_stream_work_t* work) {
  return submit({__func__, comm, type, op}, Request::reduce(input, output, count, {}, {}, root), stream, work);
}
shoal_status shoal_stream_gather(shoal_stream_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type,
                                 int root, void* stream, shoal_stream_work_t* work) {
  return submit({__func__, comm, type}, Request::gather(input, output, count, {}, root), stream, work);
}
shoal_status shoal_stream_gather_v(shoal_stream_comm_t comm, const void* input, void* output, const size_t* counts,
                                   shoal_data_type type, int root, void* stream, shoal_stream_work_t* work) {
  return submit({__func__, comm, type}, Request::gather_v(input, output, counts_at(counts), {}, root), stream, work);
}
shoal_status shoal_stream_scatter(shoal_stream_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type,
                                  int root, void* stream, shoal_stream_work_t* work) {
  return submit({__func__, comm, type}, Request::scatter(input, output, count, {}, root), stream, work);
}
shoal_status shoal_stream_scatter_v(shoal_stream_comm_t comm, const void* input, void* output, const size_t* counts,
                                    shoal_data_type type, int root, void* stream, shoal_stream_work_t* work) {
  return submit({__func__, comm, type}, Request::scatter_v(input, output, counts_at(counts), {}, root), stream, work);
}
shoal_status shoal_stream_all_to_all(shoal_stream_comm_t comm, const void* input, void* output, size_t count,
                                     shoal_data_type type, void* stream, shoal_stream_work_t* work) {
  return submit({__func__, comm, type}, Request::all_to_all(input, output, count, {}), stream, work);
}
shoal_status shoal_stream_all_to_all_v(shoal_stream_comm_t comm, const void* input, const size_t* send_counts, void* output,
                                       const size_t* receive_counts, shoal_data_type type, void* stream,
                                       shoal_stream_work_t* work) {
  return submit({__func__, comm, type},
                Request::all_to_all_v(input, counts_at(send_counts), output, counts_at(receive_counts), {}), stream, work);
}
shoal_status shoal_stream_barrier(shoal_stream_comm_t comm, void* stream, shoal_stream_work_t* work) {
  return submit({__func__, comm}, Request::barrier(), stream, work);
}
shoal_status shoal_stream_send(shoal_stream_comm_t comm, const void* buffer, size_t count, shoal_data_type type, int peer,
                               int tag, void* stream, shoal_stream_work_t* work) {
  return submit({__func__, comm, type}, Request::send(buffer, count, {}, peer, tag), stream, work);
}
shoal_status shoal_stream_recv(shoal_stream_comm_t comm, void* buffer, size_t count, shoal_data_type type, int peer, int tag,
                               void* stream, shoal_stream_work_t* work) {
  return submit({__func__, comm, type}, Request::recv(buffer, count, {}, peer, tag), stream, work);
}

shoal_status shoal_stream_exchange(shoal_stream_comm_t comm, const shoal_stream_message* messages, size_t count, void* stream,
                                   shoal_stream_work_t* work) {
  return guarded(checks_of(__func__, comm, work).not_null("messages", messages), [&]() -> Status {
    std::vector<StreamMessage> all;
    for (const shoal_stream_message& each : std::span(messages, count)) {
      if (Status fault = Checks("shoal_stream_exchange").type(each.type).status(); !fault.ok()) return fault;
      all.push_back({each.is_send != 0, each.buffer, each.count, static_cast<DataType>(each.type), each.peer, each.tag});
    }
    return deliver(comm->communicator->exchange(all, stream, call_options().timeout), work);
  });
}

shoal_status shoal_stream_work_wait(shoal_stream_work_t work) {
  return guarded(Checks(__func__).not_null("work", work), [&] { return work->work.wait(); });
}

shoal_status shoal_stream_work_wait_on(shoal_stream_work_t work, void* stream) {
  return guarded(Checks(__func__).not_null("work", work), [&] { return work->work.wait_on(stream); });
}

shoal_status shoal_stream_work_test(shoal_stream_work_t work, int* completed) {
  return guarded(Checks(__func__).not_null("work", work).not_null("completed", completed), [&] {
    *completed = work->work.is_completed() ? 1 : 0;
    return *completed != 0 ? work->work.status() : Status();
  });
}

void shoal_stream_work_free(shoal_stream_work_t work) { delete work; }

}  // extern "C"
