// Collectives on buffers in the memory of CUDA devices, in the order of a CUDA stream. No header of CUDA is needed: a stream is
// passed as the void* that a cudaStream_t is.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include <shoal/communicator.h>
#include <shoal/status.h>
#include <shoal/types.h>

namespace shoal {

namespace cuda {
class CudaApi;
class DeviceGroup;
struct StreamCall;
}  // namespace cuda

/// ok where this process can use CUDA, else why not: the part of shoal that needs it is not installed, there is no driver, or
/// no GPU. The first call opens the driver. Thread rule: any thread.
Status cuda_available();

/// ok where calls may be made on `stream`, of the current CUDA device, now. Errors: unsupported while it is being captured into
/// a CUDA graph; as cuda_available(). Thread rule: any thread.
Status cuda_stream_takes_calls(void* stream);

/// One operation on a stream. A cheap shared handle. Thread rule: any thread.
class StreamWork {
 public:
  StreamWork() noexcept = default;  ///< an empty handle: completed and ok

  /// Whether the stream is through with it, or it has failed. Never blocks.
  [[nodiscard]] bool is_completed() const;
  /// Makes `stream` wait for it; the host goes on at once. Errors: that of the operation, where it has failed already.
  Status wait_on(void* stream);
  /// Blocks the host until the operation has ended; its outcome.
  Status wait();
  /// ok while it is in flight. An error says which rank is to blame, as those of Communicator do.
  [[nodiscard]] Status status() const;
  [[nodiscard]] std::uint64_t sequence() const noexcept;  ///< position of the call on its communicator, from 0

 private:
  friend class StreamCommunicator;
  explicit StreamWork(std::shared_ptr<cuda::StreamCall> call) noexcept : call_(std::move(call)) {}
  std::shared_ptr<cuda::StreamCall> call_;
};

/// One message of an exchange between two ranks.
struct StreamMessage {
  bool is_send = false;
  void* buffer = nullptr;  ///< of a send: only read
  std::size_t count = 0;
  DataType type = DataType::float32;
  int peer = 0;  ///< the other rank
  int tag = 0;

  static StreamMessage send(const void* buffer, std::size_t count, DataType type, int peer, int tag = 0) noexcept {
    return {true, const_cast<void*>(buffer), count, type, peer, tag};
  }
  static StreamMessage recv(void* buffer, std::size_t count, DataType type, int peer, int tag = 0) noexcept {
    return {false, buffer, count, type, peer, tag};
  }
};

struct StreamOptions {
  /// Memory of the device that peers read from, on each rank; messages beyond it go in pieces. 0: SHOAL_CUDA_STAGING.
  std::size_t staging_bytes = 0;
  /// SMs that kernels of this library occupy at most. 0: SHOAL_MAX_SMS.
  int max_processors = 0;
  /// The caller asserts that kernels of all ranks of a node run at the same time even where ranks share a GPU. They then wait
  /// for each other inside one kernel, which is faster for small messages, and hang until the deadline where it is not true.
  /// Ranks with a GPU each need no word, nor do those whose GPU is served by MPS (SHOAL_CUDA_TOGETHER). Must be the same on all
  /// ranks.
  bool kernels_run_together = false;
};

/// A group of ranks that call collectives on memory of CUDA devices, each rank on one device.
///
/// A call returns at once. It is done in the order of `stream`: after what was enqueued there before, before what is enqueued
/// there later. Buffers are device memory of the device that was current when this was made, belong to the call until the
/// stream has come past it, and must not be freed before. `count`, places in the buffers, in-place calls and zero counts are as
/// in Communicator. Streams may differ from call to call; the calls of one group follow each other nevertheless.
///
/// Every rank makes the same collectives in the same order, also over several groups that share a device: streams may share a
/// queue of the device, in which the wait of an earlier call holds up a later one. Messages between two ranks (send, recv,
/// exchange) have an order of their own and concern these two only.
///
/// Between the ranks of a node data moves over NVLink or inside the device where all of them can map each other's memory, else
/// through host memory; between nodes always through host memory, as tiles, by the communicator that this was made from. So do
/// messages between two ranks and all_to_all_v, wherever the ranks are.
///
/// The first error closes the group on every rank, as does the closing of the communicator that it was made from; streams that
/// wait go on (what they compute from then on is undefined), every StreamWork in flight fails with the cause, and later calls
/// fail at once. The average of integers is refused with unsupported. Calls cannot be captured into CUDA graphs: they are
/// refused with unsupported. Thread rule: calls may come from any thread, in the same order on every rank.
class StreamCommunicator {
 public:
  /// Collective over `communicator`, which must live longer. Uses the current CUDA device. Errors: as cuda_available();
  /// unsupported where a rank's device or driver lacks what is needed; those of Communicator.
  static Result<std::unique_ptr<StreamCommunicator>> create(Communicator& communicator, StreamOptions options = {});
  StreamCommunicator(const StreamCommunicator&) = delete;
  StreamCommunicator& operator=(const StreamCommunicator&) = delete;
  /// Waits for what is in flight, and for the other ranks to come here, at most the communicator's timeout.
  ~StreamCommunicator();
  /// The destructor waits for the other ranks no longer than that. Those that come later find the group closed.
  void leave_within(std::chrono::milliseconds limit);

  using Timeout = std::optional<std::chrono::milliseconds>;  ///< default: the communicator's
  using Counts = std::span<const std::size_t>;               ///< not used after the call

  // Each as the method of Communicator of the same name.
  Result<StreamWork> all_reduce(const void* input, void* output, std::size_t count, DataType type, ReduceOp op, void* stream,
                                Timeout timeout = {});
  Result<StreamWork> broadcast(void* buffer, std::size_t count, DataType type, int root, void* stream, Timeout timeout = {});
  Result<StreamWork> all_gather(const void* input, void* output, std::size_t count, DataType type, void* stream,
                                Timeout timeout = {});
  Result<StreamWork> all_gather_v(const void* input, void* output, Counts counts, DataType type, void* stream,
                                  Timeout timeout = {});
  Result<StreamWork> reduce_scatter(const void* input, void* output, std::size_t count, DataType type, ReduceOp op,
                                    void* stream, Timeout timeout = {});
  Result<StreamWork> reduce_scatter_v(const void* input, void* output, Counts counts, DataType type, ReduceOp op, void* stream,
                                      Timeout timeout = {});
  Result<StreamWork> reduce(const void* input, void* output, std::size_t count, DataType type, ReduceOp op, int root,
                            void* stream, Timeout timeout = {});
  Result<StreamWork> gather(const void* input, void* output, std::size_t count, DataType type, int root, void* stream,
                            Timeout timeout = {});
  Result<StreamWork> gather_v(const void* input, void* output, Counts counts, DataType type, int root, void* stream,
                              Timeout timeout = {});
  Result<StreamWork> scatter(const void* input, void* output, std::size_t count, DataType type, int root, void* stream,
                             Timeout timeout = {});
  Result<StreamWork> scatter_v(const void* input, void* output, Counts counts, DataType type, int root, void* stream,
                               Timeout timeout = {});
  Result<StreamWork> all_to_all(const void* input, void* output, std::size_t count, DataType type, void* stream,
                                Timeout timeout = {});
  Result<StreamWork> all_to_all_v(const void* input, Counts send_counts, void* output, Counts receive_counts, DataType type,
                                  void* stream, Timeout timeout = {});
  /// `stream` goes on when the streams of all ranks have come here.
  Result<StreamWork> barrier(void* stream, Timeout timeout = {});

  /// Sends to rank `peer`, which receives by recv(). Messages of one sender, receiver and tag are received in the order of the
  /// calls; they are independent of the collectives. A send ends when its buffer may be used again, which for a message beyond
  /// SHOAL_CUDA_STAGING / 32 may be only after the receiver's stream has come to it.
  ///
  /// On one stream messages follow each other as blocking calls would: where ranks exchange, put both into one exchange().
  /// Messages on different streams do not wait for each other, for up to 8 streams. Errors: mismatch where the receiver expects
  /// another type or count; invalid_argument for kAnySource.
  Result<StreamWork> send(const void* buffer, std::size_t count, DataType type, int peer, int tag, void* stream,
                          Timeout timeout = {});
  Result<StreamWork> recv(void* buffer, std::size_t count, DataType type, int peer, int tag, void* stream,
                          Timeout timeout = {});
  /// Up to 32 messages that go on together, in whatever order they are named: the receiver of one may wait for another. They
  /// match those of send, recv and other exchanges.
  Result<StreamWork> exchange(std::span<const StreamMessage> messages, void* stream, Timeout timeout = {});

  /// Maps the allocation that holds `buffer` on the other ranks of the node, so that they read inputs of all_reduce, reduce,
  /// all_gather, gather and broadcast there and nothing is copied to staging memory. Collective: every rank registers a buffer
  /// of its own, of any size. Blocks the host; no call may be in flight on any rank. The allocation must live until it is
  /// deregistered, or as long as this group. At most 63 allocations a rank; one that is known already costs nothing more.
  ///
  /// Memory of cudaMalloc, and of cuMemCreate with a handle for descriptors; of a buffer that several cuMemMap hold, the one
  /// that `buffer` points to, and inputs that go beyond it are copied as ever. Errors: unsupported where the memory of some
  /// rank cannot be mapped (then nothing is registered and calls go on through staging memory); those of Communicator.
  Status register_buffer(const void* buffer);
  /// Takes back one register_buffer of the allocation that holds `buffer`; with the last it is unmapped everywhere, and may be
  /// freed when this returns. Collective: every rank names a buffer of its own. Waits for the collectives in flight. Errors:
  /// invalid_argument on all ranks where one names a buffer that is not registered, and nothing has changed.
  Status deregister_buffer(const void* buffer);

  /// Closes the group with `aborted` and `reason`, here and on every other rank.
  void abort(const std::string& reason);
  [[nodiscard]] Status status() const;
  /// How all_reduce moves data: "peer" (the device memory of others), "peer+fused", "peer+host" (several nodes), "host".
  [[nodiscard]] std::string route() const;

 private:
  friend class cuda::DeviceGroup;
  explicit StreamCommunicator(std::unique_ptr<cuda::DeviceGroup> group) noexcept;
  static Result<StreamWork> work_of(Result<std::shared_ptr<cuda::StreamCall>> call);
  std::unique_ptr<cuda::DeviceGroup> group_;
};

}  // namespace shoal
