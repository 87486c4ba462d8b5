// The C API of collectives on streams, over the fake CUDA as a library that is loaded at run time.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <shoal/shoal_cuda.h>
#include <shoal/store.h>

#include "src/cuda/cuda_api.h"
#include "tests/facts.h"
#include "tests/multiprocess/ranks.h"

namespace shoal {
namespace {

/// A file store behind the callbacks of the C API.
struct FileCallbacks {
  std::unique_ptr<Store> store;
  static int set(void* context, const char* key, const void* value, size_t bytes) {
    const auto& files = *static_cast<FileCallbacks*>(context);
    return static_cast<int>(files.store->set(key, {static_cast<const char*>(value), bytes}).code());
  }
  static int get(void* context, const char* key, int64_t timeout_ms, void* value, size_t capacity, size_t* bytes) {
    const auto& files = *static_cast<FileCallbacks*>(context);
    const auto got = files.store->get(key, std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms));
    if (!got.ok()) return static_cast<int>(got.status().code());
    *bytes = got->size();
    std::memcpy(value, got->data(), std::min(capacity, got->size()));
    return SHOAL_OK;
  }
};

/// One rank: its communicator, and numbers in device memory.
class Rank {
 public:
  Rank(shoal_stream_comm_t comm, int rank, int ranks) : comm(comm), rank(rank), ranks(ranks) {
    api_ = *cuda::load_cuda_api();
    stream = *api_->create_stream(false);
    for (std::int32_t*& buffer : buffers_) buffer = static_cast<std::int32_t*>(*api_->allocate(kBytes));
  }
  std::int32_t* in() { return buffers_[0]; }
  std::int32_t* out() { return buffers_[1]; }
  void write(const std::vector<std::int32_t>& numbers) {
    static_cast<void>(api_->copy(in(), numbers.data(), numbers.size() * 4, stream));
    static_cast<void>(api_->synchronize(stream));
  }
  /// Waits for the work of a call and compares the start of the output with `wanted`. Returns the error, or "".
  std::string expect(const char* what, shoal_status started, const std::vector<std::int32_t>& wanted) {
    if (started != SHOAL_OK) return std::string(what) + ": " + shoal_last_error_message();
    if (shoal_stream_work_wait(work) != SHOAL_OK) return std::string(what) + " later: " + shoal_last_error_message();
    int completed = 0;
    if (shoal_stream_work_test(work, &completed) != SHOAL_OK || completed != 1) return std::string(what) + ": not completed";
    shoal_stream_work_free(work);
    work = nullptr;
    if (wanted.empty()) return "";
    std::vector<std::int32_t> got(wanted.size());
    static_cast<void>(api_->copy(got.data(), out(), got.size() * 4, stream));
    static_cast<void>(api_->synchronize(stream));
    return got == wanted ? "" : std::string(what) + " is wrong";
  }

  shoal_stream_comm_t comm;
  int rank;
  int ranks;
  cuda::Stream stream = nullptr;
  shoal_stream_work_t work = nullptr;

 private:
  static constexpr std::size_t kBytes = 4096;
  cuda::CudaApi* api_;
  std::int32_t* buffers_[2];
};

/// Every call once on two ranks, with numbers that identify their rank.
std::string every_call(Rank& r) {
  const auto me = static_cast<std::int32_t>(r.rank);
  const std::int32_t other = 1 - me;
  const auto numbers = [](std::int32_t rank) { return std::vector<std::int32_t>{10 * rank + 1, 10 * rank + 2, 10 * rank + 3}; };
  r.write(numbers(me));
  constexpr shoal_data_type kInt = SHOAL_INT32;
  const std::size_t shares[] = {1, 2};
  const std::size_t sent[] = {me == 0 ? 1U : 2U,
                              me == 0 ? 2U : 1U};  // rank 0 sends itself one and its peer two, rank 1 the reverse
  const std::size_t received[] = {me == 0 ? 1U : 2U, me == 0 ? 2U : 1U};
  const auto in = r.in();
  const auto out = r.out();
  std::vector<std::string> errors{
      r.expect("all_reduce", shoal_stream_all_reduce(r.comm, in, out, 3, kInt, SHOAL_SUM, r.stream, &r.work), {12, 14, 16}),
      r.expect("all_gather", shoal_stream_all_gather(r.comm, in, out, 2, kInt, r.stream, &r.work), {1, 2, 11, 12}),
      r.expect("all_gather_v", shoal_stream_all_gather_v(r.comm, in, out, shares, kInt, r.stream, &r.work), {1, 11, 12}),
      r.expect("reduce_scatter", shoal_stream_reduce_scatter(r.comm, in, out, 1, kInt, SHOAL_MAX, r.stream, &r.work),
               {11 + me}),
      r.expect("reduce_scatter_v", shoal_stream_reduce_scatter_v(r.comm, in, out, shares, kInt, SHOAL_MAX, r.stream, &r.work),
               {me == 0 ? 11 : 12}),
      r.expect("reduce", shoal_stream_reduce(r.comm, in, out, 1, kInt, SHOAL_SUM, 1, r.stream, &r.work), {me == 0 ? 11 : 12}),
      r.expect("gather_v", shoal_stream_gather_v(r.comm, in, out, shares, kInt, 0, r.stream, &r.work), {me == 0 ? 1 : 12}),
      r.expect("gather", shoal_stream_gather(r.comm, in, out, 1, kInt, 0, r.stream, &r.work), {me == 0 ? 1 : 12}),
      r.expect("scatter", shoal_stream_scatter(r.comm, in, out, 1, kInt, 1, r.stream, &r.work), {11 + me}),
      r.expect("scatter_v", shoal_stream_scatter_v(r.comm, in, out, shares, kInt, 1, r.stream, &r.work), {11 + me}),
      r.expect("all_to_all", shoal_stream_all_to_all(r.comm, in, out, 1, kInt, r.stream, &r.work), {1 + me, 11 + me}),
      r.expect("all_to_all_v", shoal_stream_all_to_all_v(r.comm, in, sent, out, received, kInt, r.stream, &r.work),
               me == 0 ? std::vector<std::int32_t>{1, 11, 12} : std::vector<std::int32_t>{2, 3, 13}),
      r.expect("barrier", shoal_stream_barrier(r.comm, r.stream, &r.work), {}),
  };
  const shoal_stream_message both[] = {{0, out, 3, kInt, other, 4}, {1, in, 3, kInt, other, 4}};
  errors.push_back(r.expect("exchange", shoal_stream_exchange(r.comm, both, 2, r.stream, &r.work), numbers(other)));
  if (me == 0) {
    errors.push_back(r.expect("send", shoal_stream_send(r.comm, in, 2, kInt, 1, 5, r.stream, &r.work), {}));
  } else {
    errors.push_back(r.expect("recv", shoal_stream_recv(r.comm, out, 2, kInt, 0, 5, r.stream, &r.work), {1, 2}));
  }
  // This call returns no work; the next call waits for it in the stream.
  if (shoal_stream_broadcast(r.comm, in, 3, kInt, 1, r.stream, nullptr) != SHOAL_OK) return shoal_last_error_message();
  errors.push_back(
      r.expect("all_reduce", shoal_stream_all_reduce(r.comm, in, out, 3, kInt, SHOAL_SUM, r.stream, &r.work), {22, 24, 26}));
  for (const std::string& error : errors) {
    if (!error.empty()) return error;
  }
  return "";
}

std::string refused_calls(Rank& r) {
  const auto is_refused = [](shoal_status status, const char* fact) {
    return status == SHOAL_INVALID_ARGUMENT && testing::mentions(shoal_last_error_message(), fact);
  };
  r.work = reinterpret_cast<shoal_stream_work_t>(&r);
  if (!is_refused(shoal_stream_all_reduce(nullptr, r.in(), r.out(), 1, SHOAL_INT32, SHOAL_SUM, r.stream, &r.work), "comm"))
    return "no comm";
  if (r.work != nullptr) return "the work of a refused call is garbage";
  if (!is_refused(shoal_stream_all_reduce(r.comm, r.in(), r.out(), 1, 99, SHOAL_SUM, r.stream, nullptr), "99")) return "type";
  if (!is_refused(shoal_stream_reduce(r.comm, r.in(), r.out(), 1, SHOAL_INT32, 99, 0, r.stream, nullptr), "99")) return "op";
  if (!is_refused(shoal_stream_gather_v(r.comm, r.in(), r.out(), nullptr, SHOAL_INT32, 0, r.stream, nullptr), "counts"))
    return "counts";
  const shoal_stream_message message = {1, r.in(), 1, 99, 0, 0};
  if (!is_refused(shoal_stream_exchange(r.comm, &message, 1, r.stream, nullptr), "99")) return "type of a message";
  if (!is_refused(shoal_stream_deregister_buffer(r.comm, r.in()), "deregister_buffer")) return "deregister";
  if (!is_refused(shoal_stream_work_wait(nullptr), "work")) return "no work";
  return "";
}

TEST(StreamCApi, MatchesTheCppApi) {
  const auto outcomes = testing::run_ranks(2, [](int rank, int ranks, const std::string& directory) -> std::string {
    if (shoal_cuda_available() != SHOAL_OK) return shoal_last_error_message();
    FileCallbacks files{*make_file_store(directory)};
    const shoal_store store = {&files, FileCallbacks::set, FileCallbacks::get};
    shoal_comm_t host = nullptr;
    if (shoal_comm_create_with_store(&store, rank, ranks, nullptr, &host) != SHOAL_OK) return shoal_last_error_message();
    shoal_stream_config config = SHOAL_STREAM_CONFIG_INITIALIZER;
    config.staging_bytes = std::size_t{64} << 10;
    shoal_stream_comm_t comm = nullptr;
    config.magic = 1;
    if (shoal_stream_comm_create(host, &config, &comm) != SHOAL_INVALID_ARGUMENT || comm != nullptr) return "no magic";
    config.magic = SHOAL_STREAM_CONFIG_MAGIC;
    if (shoal_stream_comm_create(host, &config, &comm) != SHOAL_OK) return shoal_last_error_message();
    Rank own(comm, rank, ranks);
    std::string error = every_call(own);
    if (error.empty() && shoal_stream_register_buffer(comm, own.in()) != SHOAL_OK) error = shoal_last_error_message();
    if (error.empty() && shoal_stream_deregister_buffer(comm, own.in()) != SHOAL_OK) error = shoal_last_error_message();
    if (error.empty()) error = refused_calls(own);
    if (error.empty() && shoal_stream_comm_status(comm) != SHOAL_OK) error = shoal_last_error_message();
    // No rank aborts before the other has finished its calls.
    if (const auto status = shoal_barrier(host); error.empty() && status != SHOAL_OK) error = shoal_last_error_message();
    if (rank == 0) shoal_stream_comm_abort(comm, "enough");
    for (int i = 0; i < 500 && shoal_stream_barrier(comm, own.stream, nullptr) == SHOAL_OK; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const bool has_reason = std::string(shoal_last_error_message()).find("enough") != std::string::npos;
    if (error.empty() && !has_reason) error = std::string("the reason is lost: ") + shoal_last_error_message();
    shoal_stream_comm_destroy(comm);
    shoal_comm_destroy(host);
    return error;
  });
  testing::expect_all_well(outcomes);
}

}  // namespace
}  // namespace shoal
