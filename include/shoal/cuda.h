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
#include <shoal/request.h>
#include <shoal/status.h>
#include <shoal/types.h>

namespace shoal {

namespace cuda {
class CudaApi;
class DeviceGroup;
struct StreamCall;
}  // namespace cuda

/// ok if this process can use CUDA, else why not: shoal's CUDA library is not installed, there is no driver, or no GPU. The
/// first call opens the driver. Thread rule: any thread.
Status cuda_available();

/// ok if calls may be made now on `stream` of the current CUDA device. Errors: unsupported while the stream is being captured
/// into a CUDA graph; as cuda_available(). Thread rule: any thread.
Status cuda_stream_takes_calls(void* stream);

/// One operation on a stream. A cheap shared handle. Thread rule: any thread.
class StreamWork {
 public:
  StreamWork() noexcept = default;  ///< an empty handle: completed and ok

  /// Whether the stream has completed the operation, or the operation has failed. Never blocks.
  [[nodiscard]] bool is_completed() const;
  /// Makes `stream` wait for the operation; the host does not wait. Errors: that of the operation, if it has failed already.
  Status wait_on(void* stream);
  /// Blocks the host until the operation has ended; returns its outcome.
  Status wait();
  /// ok while the operation is in flight. An error names the rank that caused it, as those of Communicator do.
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
  /// Device memory of each rank that its peers read from; larger messages are sent in pieces. 0: SHOAL_CUDA_STAGING.
  std::size_t staging_bytes = 0;
  /// Maximum number of SMs that kernels of this library occupy. 0: SHOAL_MAX_SMS.
  int max_processors = 0;
  /// The caller asserts that kernels of all ranks of a node run at the same time even where ranks share a GPU. The ranks then
  /// wait for each other inside one kernel, which is faster for small messages, but hang until the deadline if the assertion is
  /// wrong. It is not needed where each rank has its own GPU, or MPS serves the GPU (SHOAL_CUDA_TOGETHER). Must be the same on
  /// all ranks.
  bool kernels_run_together = false;
};

/// A group of ranks that call collectives on memory of CUDA devices, each rank on one device.
///
/// A call returns at once and runs in stream order: after all work that was enqueued on `stream` earlier, before all work that
/// is enqueued later. Buffers are memory of the device that was current when the group was created. They belong to the call
/// until the stream has passed it, and must not be freed before. `count`, positions in the buffers, in-place calls and zero
/// counts are as in Communicator. Streams may differ from call to call; the calls of one group still run one after the other.
///
/// Every rank makes the same collectives in the same order, also over several groups that share a device: streams may share a
/// hardware queue of the device, in which a waiting earlier call blocks a later one. Messages between two ranks (send, recv,
/// exchange) have an order of their own and involve only these two ranks.
///
/// Between the ranks of a node, data moves over NVLink or inside the device if all of them can map each other's memory, else
/// through host memory. Between nodes, the underlying communicator moves the data through host memory, as tiles; messages
/// between two ranks and all_to_all_v always take that path, also inside a node.
///
/// The first error closes the group on every rank, as does the closing of the underlying communicator. Waiting streams then
/// continue (what they compute from then on is undefined), every StreamWork in flight fails with the cause, and later calls
/// fail at once. The average of integers is refused with unsupported, and so is the capture of a call into a CUDA graph. Thread
/// rule: calls may come from any thread, in the same order on every rank.
class StreamCommunicator {
 public:
  /// Collective over `communicator`, which must outlive the group. Uses the current CUDA device. Errors: as cuda_available();
  /// unsupported where a rank's device or driver lacks a required feature; those of Communicator.
  static Result<std::unique_ptr<StreamCommunicator>> create(Communicator& communicator, StreamOptions options = {});
  StreamCommunicator(const StreamCommunicator&) = delete;
  StreamCommunicator& operator=(const StreamCommunicator&) = delete;
  /// Waits for the calls in flight, and until the other ranks destroy the group too, at most the communicator's timeout.
  ~StreamCommunicator();
  /// Limits the time for which the destructor waits for the other ranks. Ranks that arrive later find the group closed.
  void leave_within(std::chrono::milliseconds limit);

  using Timeout = std::optional<std::chrono::milliseconds>;  ///< default: the communicator's
  using Counts = Request::Counts;                            ///< not used after the call

  /// As Communicator::submit_async(); the methods below do the same for the call of their name.
  Result<StreamWork> submit(const Request& request, void* stream, Timeout timeout = {});

  // Each as the method of the same name of Communicator.
  Result<StreamWork> all_reduce(const void* input, void* output, std::size_t count, DataType type, ReduceOp op, void* stream,
                                Timeout timeout = {}) {
    return submit(Request::all_reduce(input, output, count, type, op), stream, timeout);
  }
  Result<StreamWork> broadcast(void* buffer, std::size_t count, DataType type, int root, void* stream, Timeout timeout = {}) {
    return submit(Request::broadcast(buffer, count, type, root), stream, timeout);
  }
  Result<StreamWork> all_gather(const void* input, void* output, std::size_t count, DataType type, void* stream,
                                Timeout timeout = {}) {
    return submit(Request::all_gather(input, output, count, type), stream, timeout);
  }
  Result<StreamWork> all_gather_v(const void* input, void* output, Counts counts, DataType type, void* stream,
                                  Timeout timeout = {}) {
    return submit(Request::all_gather_v(input, output, counts, type), stream, timeout);
  }
  Result<StreamWork> reduce_scatter(const void* input, void* output, std::size_t count, DataType type, ReduceOp op,
                                    void* stream, Timeout timeout = {}) {
    return submit(Request::reduce_scatter(input, output, count, type, op), stream, timeout);
  }
  Result<StreamWork> reduce_scatter_v(const void* input, void* output, Counts counts, DataType type, ReduceOp op, void* stream,
                                      Timeout timeout = {}) {
    return submit(Request::reduce_scatter_v(input, output, counts, type, op), stream, timeout);
  }
  Result<StreamWork> reduce(const void* input, void* output, std::size_t count, DataType type, ReduceOp op, int root,
                            void* stream, Timeout timeout = {}) {
    return submit(Request::reduce(input, output, count, type, op, root), stream, timeout);
  }
  Result<StreamWork> gather(const void* input, void* output, std::size_t count, DataType type, int root, void* stream,
                            Timeout timeout = {}) {
    return submit(Request::gather(input, output, count, type, root), stream, timeout);
  }
  Result<StreamWork> gather_v(const void* input, void* output, Counts counts, DataType type, int root, void* stream,
                              Timeout timeout = {}) {
    return submit(Request::gather_v(input, output, counts, type, root), stream, timeout);
  }
  Result<StreamWork> scatter(const void* input, void* output, std::size_t count, DataType type, int root, void* stream,
                             Timeout timeout = {}) {
    return submit(Request::scatter(input, output, count, type, root), stream, timeout);
  }
  Result<StreamWork> scatter_v(const void* input, void* output, Counts counts, DataType type, int root, void* stream,
                               Timeout timeout = {}) {
    return submit(Request::scatter_v(input, output, counts, type, root), stream, timeout);
  }
  Result<StreamWork> all_to_all(const void* input, void* output, std::size_t count, DataType type, void* stream,
                                Timeout timeout = {}) {
    return submit(Request::all_to_all(input, output, count, type), stream, timeout);
  }
  Result<StreamWork> all_to_all_v(const void* input, Counts send_counts, void* output, Counts receive_counts, DataType type,
                                  void* stream, Timeout timeout = {}) {
    return submit(Request::all_to_all_v(input, send_counts, output, receive_counts, type), stream, timeout);
  }
  /// `stream` continues when the streams of all ranks have reached this call.
  Result<StreamWork> barrier(void* stream, Timeout timeout = {}) { return submit(Request::barrier(), stream, timeout); }

  /// Sends to rank `peer`, which receives by recv(). Messages of one sender, receiver and tag are received in the order of the
  /// calls; they are independent of the collectives. A send ends when its buffer may be used again; for a message larger than
  /// SHOAL_CUDA_STAGING / 32 that may be only after the receiver's stream has reached the recv.
  ///
  /// On one stream, messages run one after the other like blocking calls: ranks that exchange data use one exchange() for both.
  /// Messages on different streams do not wait for each other, for up to 8 streams. Errors: mismatch where the receiver expects
  /// another type or count; invalid_argument for kAnySource.
  Result<StreamWork> send(const void* buffer, std::size_t count, DataType type, int peer, int tag, void* stream,
                          Timeout timeout = {}) {
    return submit(Request::send(buffer, count, type, peer, tag), stream, timeout);
  }
  Result<StreamWork> recv(void* buffer, std::size_t count, DataType type, int peer, int tag, void* stream,
                          Timeout timeout = {}) {
    return submit(Request::recv(buffer, count, type, peer, tag), stream, timeout);
  }
  /// Up to 32 messages that progress together, in any order: none of them has to end before another can start. They match
  /// messages of send, recv and other exchanges.
  Result<StreamWork> exchange(std::span<const StreamMessage> messages, void* stream, Timeout timeout = {});

  /// Maps the allocation that holds `buffer` on the other ranks of the node. They then read inputs of all_reduce, reduce,
  /// all_gather, gather and broadcast there directly, without a copy to staging memory. Collective: every rank registers a
  /// buffer of its own, of any size. Blocks the host; no call may be in flight on any rank. The allocation must live until it
  /// is deregistered, or as long as this group. At most 63 allocations for each rank; an allocation that is registered again
  /// does not count twice.
  ///
  /// Works for memory of cudaMalloc, and of cuMemCreate with a handle for descriptors. If several cuMemMap mappings form one
  /// buffer, only the mapping that `buffer` points to is registered; inputs that reach beyond it go through staging memory.
  /// Errors: unsupported if the memory of any rank cannot be mapped (then nothing is registered and calls continue through
  /// staging memory); those of Communicator.
  Status register_buffer(const void* buffer);
  /// Undoes one register_buffer of the allocation that holds `buffer`. The last one unmaps the allocation on all ranks; it may
  /// be freed when the call returns. Collective: every rank passes a buffer of its own. Waits for the collectives in flight.
  /// Errors: invalid_argument on all ranks if one passes a buffer that is not registered; nothing has changed then.
  Status deregister_buffer(const void* buffer);

  /// Closes the group with `aborted` and `reason`, here and on every other rank.
  void abort(const std::string& reason);
  [[nodiscard]] Status status() const;
  /// How all_reduce moves data: "peer" (device memory of the peers), "peer+fused", "peer+host" (several nodes), "host".
  [[nodiscard]] std::string route() const;

 private:
  friend class cuda::DeviceGroup;
  explicit StreamCommunicator(std::unique_ptr<cuda::DeviceGroup> group) noexcept;
  std::unique_ptr<cuda::DeviceGroup> group_;
};

}  // namespace shoal
