// Communicator and Work: what users hold.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include <shoal/status.h>
#include <shoal/store.h>
#include <shoal/types.h>

namespace shoal {

namespace internal {
class CommunicatorImpl;
class Operation;
}  // namespace internal

/// One operation in flight. A cheap shared handle; the operation goes on if the handle is dropped.
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
  /// As wait(), but gives up after `timeout` with StatusCode::timeout and leaves the operation running.
  Status wait_for(std::chrono::nanoseconds timeout);
  /// ok while the operation is in flight.
  [[nodiscard]] Status status() const;
  /// Calls `callback` once with the outcome: at once in this thread if the operation has ended, else later in the thread that
  /// ended it. One callback an operation; a second replaces nothing and is refused with invalid_argument.
  ///
  /// A callback may make calls with `_async`. It must not wait: the thread that runs it is the one that moves everybody's data.
  /// Blocking calls, and wait() for something that is still in flight, are refused in it with invalid_argument, and nothing is
  /// started. Nor may it destroy a communicator or wait in other ways for an operation of this process to end.
  Status on_completion(std::function<void(const Status&)> callback);
  /// Position of the call on its communicator, from 0; sends and receives are counted on their own.
  [[nodiscard]] std::uint64_t sequence() const noexcept;
  /// Of a recv that has ended well: the rank whose message it is. Else -1.
  [[nodiscard]] int source() const noexcept;

 private:
  friend class internal::CommunicatorImpl;
  explicit Work(internal::Operation* operation) noexcept : operation_(operation) {}
  internal::Operation* operation_ = nullptr;
};

/// Options of a communicator. Defaults come from the SHOAL_* environment of rank 0 (`shoal env` lists them).
struct CommunicatorOptions {
  /// Deadline of every call that names none, and of the start-up.
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};
  /// Force this algorithm ("" = the Selector chooses) and these transports ("" = best reachable; "tcp"; "shm,tcp").
  std::string algorithm;
  std::string transports;
};

/// Options of one call.
struct CallOptions {
  std::optional<std::chrono::milliseconds> timeout;  ///< default: the communicator's
  const char* algorithm = nullptr;                   ///< force this one; null = the Selector chooses
  /// Not null: the call is not made. It is checked as ever, the microseconds that it is predicted to take are added to
  /// *estimate_us, and the Work is an empty one. Buffers are left alone and no other rank is asked.
  double* estimate_us = nullptr;
};

/// What the last call of a kind ran, for reports.
struct CallReport {
  std::string algorithm;  ///< "direct", "hierarchical", ...
  std::string transport;  ///< "shm", "tcp", "shm+tcp", "local"
  double predicted_us = 0;
};

/// As the peer of a recv: whoever sends first.
inline constexpr int kAnySource = -1;

/// A group of ranks that call collectives together, in the same order.
///
/// Calls without `_async` return when the result is there. Calls with it return at once; the buffers must stay valid and
/// unchanged until the Work ends. Many may be in flight. Zero elements are valid.
///
/// Where a message is dealt in shares, they lie back to back in rank order. `count` is the size of every share; the calls that
/// end in _v take the size of each rank's share instead, from 0 up, and all ranks must pass the same. `counts` must hold size()
/// numbers, and is not used after the call.
///
/// In place: `output == input`; where one of them holds all shares and the other one this rank's, the latter lies at its place
/// in the former (all_gather: `input == output + rank * count` elements; reduce_scatter: `output == input + rank * count`).
/// Any other overlap is invalid, and all_to_all is never in place. A buffer that a rank does not use (the output of a reduce or
/// gather elsewhere than at the root, the input of a scatter) may be anything, null included.
///
/// The first error closes the communicator on every rank with that cause; every call in flight fails with it and later ones
/// fail at once. Thread rule: calls may come from any thread, but every rank must make them in the same order.
class Communicator {
 public:
  /// Joins the job described by the environment of `shoal run`, mpirun, torchrun or srun; one rank where there is none.
  static Result<std::unique_ptr<Communicator>> create(CommunicatorOptions options = options_from_environment());
  /// Joins through `store`, which must outlive this call only. Collective: every rank of 0..size-1 calls it.
  static Result<std::unique_ptr<Communicator>> create(Store& store, int rank, int size, CommunicatorOptions options = {});
  static CommunicatorOptions options_from_environment();

  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  /// Fails what is in flight (StatusCode::aborted), tells the peers, gives everything back.
  ~Communicator();

  [[nodiscard]] int rank() const noexcept;
  [[nodiscard]] int size() const noexcept;
  [[nodiscard]] int nodes() const noexcept;       ///< nodes that the ranks live on
  [[nodiscard]] int local_rank() const noexcept;  ///< position among the ranks of this node
  [[nodiscard]] int local_size() const noexcept;

  /// output[i] = op over ranks of input[i], for i < count. Source: MPI-4.0 section 6.9.6.
  Status all_reduce(const void* input, void* output, std::size_t count, DataType type, ReduceOp op, CallOptions options = {});
  Result<Work> all_reduce_async(const void* input, void* output, std::size_t count, DataType type, ReduceOp op,
                                CallOptions options = {});

  /// Copies `buffer` of rank `root` into `buffer` of every rank.
  Status broadcast(void* buffer, std::size_t count, DataType type, int root, CallOptions options = {});
  Result<Work> broadcast_async(void* buffer, std::size_t count, DataType type, int root, CallOptions options = {});

  /// output[r * count + i] = input[i] of rank r. `output` holds size() * count elements.
  Status all_gather(const void* input, void* output, std::size_t count, DataType type, CallOptions options = {});
  Result<Work> all_gather_async(const void* input, void* output, std::size_t count, DataType type, CallOptions options = {});

  /// As all_gather, but input holds counts[rank] elements and output all of them together. Source: MPI-4.0 section 6.7.
  Status all_gather_v(const void* input, void* output, std::span<const std::size_t> counts, DataType type,
                      CallOptions options = {});
  Result<Work> all_gather_v_async(const void* input, void* output, std::span<const std::size_t> counts, DataType type,
                                  CallOptions options = {});

  /// output[i] = op over ranks of input[rank * count + i]: `input` holds size() * count elements, `output` the share of this
  /// rank. Source: MPI-4.0 section 6.10.
  Status reduce_scatter(const void* input, void* output, std::size_t count, DataType type, ReduceOp op,
                        CallOptions options = {});
  Result<Work> reduce_scatter_async(const void* input, void* output, std::size_t count, DataType type, ReduceOp op,
                                    CallOptions options = {});
  /// The same with shares of counts[r] elements for rank r.
  Status reduce_scatter_v(const void* input, void* output, std::span<const std::size_t> counts, DataType type, ReduceOp op,
                          CallOptions options = {});
  Result<Work> reduce_scatter_v_async(const void* input, void* output, std::span<const std::size_t> counts, DataType type,
                                      ReduceOp op, CallOptions options = {});

  /// output[i] = op over ranks of input[i], for i < count, on rank `root`. Source: MPI-4.0 section 6.9.1.
  Status reduce(const void* input, void* output, std::size_t count, DataType type, ReduceOp op, int root,
                CallOptions options = {});
  Result<Work> reduce_async(const void* input, void* output, std::size_t count, DataType type, ReduceOp op, int root,
                            CallOptions options = {});

  /// output[r * count + i] = input[i] of rank r, on rank `root`. Source: MPI-4.0 section 6.5.
  Status gather(const void* input, void* output, std::size_t count, DataType type, int root, CallOptions options = {});
  Result<Work> gather_async(const void* input, void* output, std::size_t count, DataType type, int root,
                            CallOptions options = {});
  /// The same with counts[r] elements of rank r.
  Status gather_v(const void* input, void* output, std::span<const std::size_t> counts, DataType type, int root,
                  CallOptions options = {});
  Result<Work> gather_v_async(const void* input, void* output, std::span<const std::size_t> counts, DataType type, int root,
                              CallOptions options = {});

  /// output[i] = input[rank * count + i] of rank `root`. Source: MPI-4.0 section 6.6.
  Status scatter(const void* input, void* output, std::size_t count, DataType type, int root, CallOptions options = {});
  Result<Work> scatter_async(const void* input, void* output, std::size_t count, DataType type, int root,
                             CallOptions options = {});
  /// The same with counts[r] elements for rank r.
  Status scatter_v(const void* input, void* output, std::span<const std::size_t> counts, DataType type, int root,
                   CallOptions options = {});
  Result<Work> scatter_v_async(const void* input, void* output, std::span<const std::size_t> counts, DataType type, int root,
                               CallOptions options = {});

  /// output[r * count + i] = input[rank * count + i] of rank r: block r of the input goes to rank r. Both hold size() * count
  /// elements. Source: MPI-4.0 section 6.8.
  Status all_to_all(const void* input, void* output, std::size_t count, DataType type, CallOptions options = {});
  Result<Work> all_to_all_async(const void* input, void* output, std::size_t count, DataType type, CallOptions options = {});
  /// The same with blocks of send_counts[r] elements for rank r and receive_counts[r] elements from it. Every rank has counts
  /// of its own; what rank a sends to rank b must be what b receives from a, else the communicator is closed with an error.
  Status all_to_all_v(const void* input, std::span<const std::size_t> send_counts, void* output,
                      std::span<const std::size_t> receive_counts, DataType type, CallOptions options = {});
  Result<Work> all_to_all_v_async(const void* input, std::span<const std::size_t> send_counts, void* output,
                                  std::span<const std::size_t> receive_counts, DataType type, CallOptions options = {});

  /// Returns when every rank has entered it.
  Status barrier(CallOptions options = {});
  Result<Work> barrier_async(CallOptions options = {});

  /// Sends `count` elements to rank `peer`, which receives them with recv(). Messages of one sender, receiver and tag are
  /// received in the order in which they were sent; they are independent of the collectives. Returns when the buffer may be
  /// used again; that may be before the receiver has asked for it, or only then. A rank may send to itself; where both calls
  /// are blocking, put them between group_begin() and group_end(). Source: MPI-4.0 section 3.2.
  ///
  /// Errors: as all calls; mismatch where the receiver expects another type or count, at both ends and naming both, and where
  /// a rank has sent more than 262,144 messages to another that has not called recv() for them.
  Status send(const void* buffer, std::size_t count, DataType type, int peer, int tag = 0, CallOptions options = {});
  Result<Work> send_async(const void* buffer, std::size_t count, DataType type, int peer, int tag = 0,
                          CallOptions options = {});
  /// Receives exactly `count` elements from rank `peer`, or from any rank (kAnySource; Work::source() tells which). `tag` must
  /// be that of the send.
  Status recv(void* buffer, std::size_t count, DataType type, int peer, int tag = 0, CallOptions options = {});
  Result<Work> recv_async(void* buffer, std::size_t count, DataType type, int peer, int tag = 0, CallOptions options = {});

  /// Calls that this thread makes, on whatever communicator, between group_begin() and the matching group_end() start together
  /// at the latter: small messages of several calls share packets, and blocking sends and receives of ranks that exchange
  /// cannot wait for each other. Blocking calls return at once in between, their results are there when group_end() returns; it
  /// returns the first error among them. Pairs may be nested; the outermost counts.
  static void group_begin();
  static Status group_end();

  /// Makes a communicator of each set of ranks that name the same `color`, ordered by `key`, then by rank here; null for a
  /// negative color. Collective over this communicator. Source: MPI-4.0 section 7.4.2.
  ///
  /// A group shares threads and links with the communicator that it comes from, and costs little. Calls of different groups are
  /// independent of each other: ranks may make them in different orders if they make them asynchronously. An error closes the
  /// group that it happens in; a dead process closes all that hold it. Groups, and what they come from, are destroyed in any
  /// order.
  Result<std::unique_ptr<Communicator>> split(int color, int key);
  /// Makes a communicator of `ranks` of this one, in the order of their new ranks. Only these call it, all with the same list;
  /// nobody waits for anybody. Errors: invalid_argument for a list that is empty, names a rank twice or one that does not
  /// exist, or leaves this rank out.
  Result<std::unique_ptr<Communicator>> group(std::span<const int> ranks);

  /// After a failure, a communicator of those who are left: the ranks of this one, in their order, but for those whose
  /// processes have died or left the job, and those in `without` (the same list on all ranks: late ones, for example).
  /// Collective over these; this communicator may be closed or open. Returns when all of them have met; a rank that dies
  /// meanwhile is left out, too. The new communicator uses the connections that exist, and can be shrunk in turn. Source:
  /// MPI-5.0's and ULFM's MPI_Comm_shrink; here nobody has to agree on a failure first.
  ///
  /// Errors: invalid_argument for a `without` that names this rank or one that does not exist; timeout (`timeout`, or the
  /// communicator's) on all ranks, as soon as it has passed on one, with the ranks that have not come, which `without` can
  /// leave out the next time; aborted on all of them, where one calls abort() meanwhile.
  Result<std::unique_ptr<Communicator>> shrink(std::span<const int> without = {},
                                               std::optional<std::chrono::milliseconds> timeout = {});

  /// Closes the communicator with StatusCode::aborted and `reason`, here and on every other rank; ends a shrink() of it that
  /// this rank is in.
  void abort(const std::string& reason);
  /// ok, or why the communicator is closed.
  [[nodiscard]] Status status() const;

  /// What the last completed call ran.
  [[nodiscard]] CallReport last_call() const;
  /// Bytes of scratch and staging memory held for this communicator (not user buffers). What all groups share counts in the
  /// one that was created.
  [[nodiscard]] std::size_t memory_bytes() const noexcept;

 private:
  explicit Communicator(std::unique_ptr<internal::CommunicatorImpl> impl) noexcept;
  friend class internal::CommunicatorImpl;
  std::unique_ptr<internal::CommunicatorImpl> impl_;
};

}  // namespace shoal
