// Communicator and Work, the handles that a program holds.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include <shoal/request.h>
#include <shoal/status.h>
#include <shoal/store.h>
#include <shoal/types.h>

namespace shoal {

namespace internal {
class CommunicatorImpl;
class Operation;
}  // namespace internal

/// One operation in flight. A cheap shared handle; the operation continues if the handle is dropped.
/// Thread rule: every method may be called from any thread.
class Work {
 public:
  Work() noexcept = default;  ///< an empty handle: completed and ok
  Work(const Work& other) noexcept;
  Work(Work&& other) noexcept;
  Work& operator=(Work other) noexcept;
  ~Work();

  [[nodiscard]] bool is_completed() const noexcept;
  /// Blocks until the operation has ended; returns its outcome. Never blocks past the operation's deadline by more than
  /// a scheduling delay. The buffers belong to the caller again when it returns.
  Status wait();
  /// As wait(), but returns StatusCode::timeout after `timeout` and leaves the operation running.
  Status wait_for(std::chrono::nanoseconds timeout);
  /// ok while the operation is in flight.
  [[nodiscard]] Status status() const;
  /// Calls `callback` once with the outcome: at once in this thread if the operation has ended, else later in the thread that
  /// ended it. An operation takes one callback: a second is refused with invalid_argument and replaces nothing.
  ///
  /// A callback may make calls with `_async`. It must not wait, because the thread that runs it also moves the data of all
  /// other calls. Blocking calls, and wait() for an operation that is still in flight, are refused in a callback with
  /// invalid_argument, and nothing is started. A callback must not destroy a communicator either, nor wait in any other way for
  /// an operation of this process to end.
  Status on_completion(std::function<void(const Status&)> callback);
  /// Position of the call on its communicator, from 0; sends and receives are counted on their own.
  [[nodiscard]] std::uint64_t sequence() const noexcept;
  /// After a successful recv: the rank that sent the message. Else -1.
  [[nodiscard]] int source() const noexcept;

 private:
  friend class internal::CommunicatorImpl;
  explicit Work(internal::Operation* operation) noexcept : operation_(operation) {}
  internal::Operation* operation_ = nullptr;
};

/// Options of a communicator. Defaults come from the SHOAL_* environment of rank 0 (`shoal env` lists them).
struct CommunicatorOptions {
  /// Timeout of the start-up, and of every call without a timeout of its own.
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};
  /// Force this algorithm ("" = the Selector chooses) and these transports ("" = best reachable; "tcp"; "shm,tcp").
  std::string algorithm;
  std::string transports;
};

/// Options of one call.
struct CallOptions {
  std::optional<std::chrono::milliseconds> timeout;  ///< default: the communicator's
  const char* algorithm = nullptr;                   ///< force this one; null = the Selector chooses
  /// Not null: the call is only estimated. Its arguments are checked, its predicted duration in microseconds is added to
  /// *estimate_us, and the Work is an empty one. No buffer is touched and no other rank is contacted.
  double* estimate_us = nullptr;
};

/// Algorithm and transport of a completed call, for reports.
struct CallReport {
  std::string algorithm;  ///< "direct", "hierarchical", ...
  std::string transport;  ///< "shm", "tcp", "shm+tcp", "local"
  double predicted_us = 0;
};

/// A group of ranks that call collectives together, in the same order.
///
/// Calls without `_async` return when the result is available. Calls with `_async` return at once; the buffers must stay valid
/// and unchanged until the Work ends. Many calls may be in flight. Zero elements are valid.
///
/// Where a buffer holds one share for each rank, the shares lie back to back in rank order. `count` is the size of every share;
/// the calls that end in _v take the size of each rank's share instead, from 0 up, and all ranks must pass the same sizes.
/// `counts` must hold size() numbers, and is not used after the call.
///
/// In place: `output == input`. Where one buffer holds all shares and the other only this rank's share, that share lies at its
/// place in the larger buffer (all_gather: `input == output + rank * count` elements; reduce_scatter:
/// `output == input + rank * count`). Any other overlap is invalid, and all_to_all is never in place. A buffer that a rank does
/// not use (the output of a reduce or gather on a rank other than the root, the input of a scatter there) may be anything, null
/// included.
///
/// The first error closes the communicator on every rank with that cause: calls in flight fail with the cause, and later calls
/// fail at once. Thread rule: calls may come from any thread, but every rank must make them in the same order.
class Communicator {
 public:
  /// Joins the job described by the environment of `shoal run`, mpirun, torchrun or srun; without one of them, creates a job of
  /// one rank.
  static Result<std::unique_ptr<Communicator>> create(CommunicatorOptions options = options_from_environment());
  /// Joins through `store`, which is not used after this call. Collective: every rank of 0..size-1 calls it.
  static Result<std::unique_ptr<Communicator>> create(Store& store, int rank, int size, CommunicatorOptions options = {});
  static CommunicatorOptions options_from_environment();

  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  /// Fails the calls in flight with StatusCode::aborted, notifies the peers and releases all resources.
  ~Communicator();

  [[nodiscard]] int rank() const noexcept;
  [[nodiscard]] int size() const noexcept;
  [[nodiscard]] int nodes() const noexcept;       ///< number of nodes that the ranks run on
  [[nodiscard]] int local_rank() const noexcept;  ///< position among the ranks of this node
  [[nodiscard]] int local_size() const noexcept;

  /// Makes the call that `request` describes; the methods below do the same for the call of their name. Errors: those of the
  /// call; invalid_argument for a kind that is not one of CollectiveKind, or counts where calls of the kind have none.
  Status submit(const Request& request, const CallOptions& options = {});
  Result<Work> submit_async(const Request& request, const CallOptions& options = {});

  /// output[i] = op over ranks of input[i], for i < count. Source: MPI-4.0 section 6.9.6.
  Status all_reduce(const void* input, void* output, std::size_t count, DataType type, ReduceOp op, CallOptions options = {}) {
    return submit(Request::all_reduce(input, output, count, type, op), options);
  }
  Result<Work> all_reduce_async(const void* input, void* output, std::size_t count, DataType type, ReduceOp op,
                                CallOptions options = {}) {
    return submit_async(Request::all_reduce(input, output, count, type, op), options);
  }

  /// Copies `buffer` of rank `root` into `buffer` of every rank.
  Status broadcast(void* buffer, std::size_t count, DataType type, int root, CallOptions options = {}) {
    return submit(Request::broadcast(buffer, count, type, root), options);
  }
  Result<Work> broadcast_async(void* buffer, std::size_t count, DataType type, int root, CallOptions options = {}) {
    return submit_async(Request::broadcast(buffer, count, type, root), options);
  }

  /// output[r * count + i] = input[i] of rank r. `output` holds size() * count elements.
  Status all_gather(const void* input, void* output, std::size_t count, DataType type, CallOptions options = {}) {
    return submit(Request::all_gather(input, output, count, type), options);
  }
  Result<Work> all_gather_async(const void* input, void* output, std::size_t count, DataType type, CallOptions options = {}) {
    return submit_async(Request::all_gather(input, output, count, type), options);
  }

  /// As all_gather, but `input` holds counts[rank] elements, and `output` the shares of all ranks. Source: MPI-4.0 section 6.7.
  Status all_gather_v(const void* input, void* output, std::span<const std::size_t> counts, DataType type,
                      CallOptions options = {}) {
    return submit(Request::all_gather_v(input, output, counts, type), options);
  }
  Result<Work> all_gather_v_async(const void* input, void* output, std::span<const std::size_t> counts, DataType type,
                                  CallOptions options = {}) {
    return submit_async(Request::all_gather_v(input, output, counts, type), options);
  }

  /// output[i] = op over ranks of input[rank * count + i]: `input` holds size() * count elements, `output` the share of this
  /// rank. Source: MPI-4.0 section 6.10.
  Status reduce_scatter(const void* input, void* output, std::size_t count, DataType type, ReduceOp op,
                        CallOptions options = {}) {
    return submit(Request::reduce_scatter(input, output, count, type, op), options);
  }
  Result<Work> reduce_scatter_async(const void* input, void* output, std::size_t count, DataType type, ReduceOp op,
                                    CallOptions options = {}) {
    return submit_async(Request::reduce_scatter(input, output, count, type, op), options);
  }
  /// The same with shares of counts[r] elements for rank r.
  Status reduce_scatter_v(const void* input, void* output, std::span<const std::size_t> counts, DataType type, ReduceOp op,
                          CallOptions options = {}) {
    return submit(Request::reduce_scatter_v(input, output, counts, type, op), options);
  }
  Result<Work> reduce_scatter_v_async(const void* input, void* output, std::span<const std::size_t> counts, DataType type,
                                      ReduceOp op, CallOptions options = {}) {
    return submit_async(Request::reduce_scatter_v(input, output, counts, type, op), options);
  }

  /// output[i] = op over ranks of input[i], for i < count, on rank `root`. Source: MPI-4.0 section 6.9.1.
  Status reduce(const void* input, void* output, std::size_t count, DataType type, ReduceOp op, int root,
                CallOptions options = {}) {
    return submit(Request::reduce(input, output, count, type, op, root), options);
  }
  Result<Work> reduce_async(const void* input, void* output, std::size_t count, DataType type, ReduceOp op, int root,
                            CallOptions options = {}) {
    return submit_async(Request::reduce(input, output, count, type, op, root), options);
  }

  /// output[r * count + i] = input[i] of rank r, on rank `root`. Source: MPI-4.0 section 6.5.
  Status gather(const void* input, void* output, std::size_t count, DataType type, int root, CallOptions options = {}) {
    return submit(Request::gather(input, output, count, type, root), options);
  }
  Result<Work> gather_async(const void* input, void* output, std::size_t count, DataType type, int root,
                            CallOptions options = {}) {
    return submit_async(Request::gather(input, output, count, type, root), options);
  }
  /// The same with counts[r] elements of rank r.
  Status gather_v(const void* input, void* output, std::span<const std::size_t> counts, DataType type, int root,
                  CallOptions options = {}) {
    return submit(Request::gather_v(input, output, counts, type, root), options);
  }
  Result<Work> gather_v_async(const void* input, void* output, std::span<const std::size_t> counts, DataType type, int root,
                              CallOptions options = {}) {
    return submit_async(Request::gather_v(input, output, counts, type, root), options);
  }

  /// output[i] = input[rank * count + i] of rank `root`. Source: MPI-4.0 section 6.6.
  Status scatter(const void* input, void* output, std::size_t count, DataType type, int root, CallOptions options = {}) {
    return submit(Request::scatter(input, output, count, type, root), options);
  }
  Result<Work> scatter_async(const void* input, void* output, std::size_t count, DataType type, int root,
                             CallOptions options = {}) {
    return submit_async(Request::scatter(input, output, count, type, root), options);
  }
  /// The same with counts[r] elements for rank r.
  Status scatter_v(const void* input, void* output, std::span<const std::size_t> counts, DataType type, int root,
                   CallOptions options = {}) {
    return submit(Request::scatter_v(input, output, counts, type, root), options);
  }
  Result<Work> scatter_v_async(const void* input, void* output, std::span<const std::size_t> counts, DataType type, int root,
                               CallOptions options = {}) {
    return submit_async(Request::scatter_v(input, output, counts, type, root), options);
  }

  /// output[r * count + i] = input[rank * count + i] of rank r: block r of the input goes to rank r. Both hold size() * count
  /// elements. Source: MPI-4.0 section 6.8.
  Status all_to_all(const void* input, void* output, std::size_t count, DataType type, CallOptions options = {}) {
    return submit(Request::all_to_all(input, output, count, type), options);
  }
  Result<Work> all_to_all_async(const void* input, void* output, std::size_t count, DataType type, CallOptions options = {}) {
    return submit_async(Request::all_to_all(input, output, count, type), options);
  }
  /// The same with blocks of send_counts[r] elements for rank r and receive_counts[r] elements from rank r. Every rank passes
  /// its own counts; send_counts[b] of rank a must equal receive_counts[a] of rank b, else the communicator is closed with an
  /// error.
  Status all_to_all_v(const void* input, std::span<const std::size_t> send_counts, void* output,
                      std::span<const std::size_t> receive_counts, DataType type, CallOptions options = {}) {
    return submit(Request::all_to_all_v(input, send_counts, output, receive_counts, type), options);
  }
  Result<Work> all_to_all_v_async(const void* input, std::span<const std::size_t> send_counts, void* output,
                                  std::span<const std::size_t> receive_counts, DataType type, CallOptions options = {}) {
    return submit_async(Request::all_to_all_v(input, send_counts, output, receive_counts, type), options);
  }

  /// Returns when every rank has entered it.
  Status barrier(CallOptions options = {}) { return submit(Request::barrier(), options); }
  Result<Work> barrier_async(CallOptions options = {}) { return submit_async(Request::barrier(), options); }

  /// Sends `count` elements to rank `peer`, which receives them with recv(). Messages of one sender, receiver and tag are
  /// received in the order in which they were sent; they are independent of the collectives. Returns when the buffer may be
  /// used again, which may be before the receiver calls recv() or only after. A rank may send to itself; where both calls are
  /// blocking, put them between group_begin() and group_end(). Source: MPI-4.0 section 3.2.
  ///
  /// Errors: as all calls; mismatch where the receiver expects another type or count (reported at both ends, naming both), and
  /// where a rank has sent more than 262,144 messages for which the receiver has not called recv().
  Status send(const void* buffer, std::size_t count, DataType type, int peer, int tag = 0, CallOptions options = {}) {
    return submit(Request::send(buffer, count, type, peer, tag), options);
  }
  Result<Work> send_async(const void* buffer, std::size_t count, DataType type, int peer, int tag = 0,
                          CallOptions options = {}) {
    return submit_async(Request::send(buffer, count, type, peer, tag), options);
  }
  /// Receives exactly `count` elements from rank `peer`, or from any rank (kAnySource; then Work::source() is the sender).
  /// `tag` must be that of the send.
  Status recv(void* buffer, std::size_t count, DataType type, int peer, int tag = 0, CallOptions options = {}) {
    return submit(Request::recv(buffer, count, type, peer, tag), options);
  }
  Result<Work> recv_async(void* buffer, std::size_t count, DataType type, int peer, int tag = 0, CallOptions options = {}) {
    return submit_async(Request::recv(buffer, count, type, peer, tag), options);
  }

  /// Calls that this thread makes on any communicator between group_begin() and the matching group_end() start together in
  /// group_end(). Small messages of several calls then share packets, and ranks that exchange data by blocking sends and
  /// receives do not deadlock. Blocking calls in between return at once; their results are available when group_end() returns,
  /// which returns the first error among them. Pairs may be nested; the calls start at the end of the outermost pair.
  static void group_begin();
  static Status group_end();

  /// Makes a communicator of each set of ranks that name the same `color`, ordered by `key`, then by rank here; null for a
  /// negative color. Collective over this communicator. Source: MPI-4.0 section 7.4.2.
  ///
  /// A group shares threads and links with its parent communicator, and costs little. Calls of different groups are independent
  /// of each other: ranks may make them in different orders if they make them asynchronously. An error closes only the group
  /// that it happens in; a dead process closes every group that contains it. Groups and their parents may be destroyed in any
  /// order.
  Result<std::unique_ptr<Communicator>> split(int color, int key);
  /// Makes a communicator of `ranks` of this one, in the order of their new ranks. Only these ranks call it, all with the same
  /// list; no rank waits for another. Errors: invalid_argument for a list that is empty, names a rank twice or one that does
  /// not exist, or does not contain this rank.
  Result<std::unique_ptr<Communicator>> group(std::span<const int> ranks);

  /// After a failure, makes a communicator of the surviving ranks: the ranks of this one, in their order, except those whose
  /// processes have died or left the job, and those in `without` (the same list on all ranks: stragglers, for example).
  /// Collective over the surviving ranks; this communicator may be closed or open. Returns when all of them have called it; a
  /// rank that dies during the call is excluded as well. The new communicator uses the existing connections, and can be shrunk
  /// in turn. Source: MPI-5.0's and ULFM's MPI_Comm_shrink; here the ranks need not agree on a failure first.
  ///
  /// Errors: invalid_argument for a `without` that names this rank or one that does not exist; timeout on all ranks as soon as
  /// `timeout` (or the communicator's) has passed on one of them, naming the ranks that did not call it, so that `without` can
  /// exclude them in the next attempt; aborted on all ranks where one of them calls abort() during the call.
  Result<std::unique_ptr<Communicator>> shrink(std::span<const int> without = {},
                                               std::optional<std::chrono::milliseconds> timeout = {});

  /// Closes the communicator with StatusCode::aborted and `reason`, here and on every other rank; ends a running shrink() of it
  /// in which this rank takes part.
  void abort(const std::string& reason);
  /// ok, or why the communicator is closed.
  [[nodiscard]] Status status() const;

  /// Algorithm and transport of the last completed call.
  [[nodiscard]] CallReport last_call() const;
  /// Bytes of scratch and staging memory held for this communicator (not user buffers). Grows when a call first uses a link
  /// that create() did not connect (SHOAL_CONNECT), and when this rank takes over the control connections of its host. Memory
  /// that groups share counts for the communicator that create() returned.
  [[nodiscard]] std::size_t memory_bytes() const noexcept;

 private:
  explicit Communicator(std::unique_ptr<internal::CommunicatorImpl> impl) noexcept;
  friend class internal::CommunicatorImpl;
  std::unique_ptr<internal::CommunicatorImpl> impl_;
};

}  // namespace shoal
