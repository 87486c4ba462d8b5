// DeviceGroup: what stands behind a StreamCommunicator.
//
// A call only enqueues work on the caller's stream. Streams of different ranks wait for each other by flags in the host's
// memory (Board), never inside a kernel unless kernels are known to run together; where data goes through the host, a thread of
// the group hands tiles to the host's engine and raises flags when they are back. So the caller never waits, and several ranks
// may share a GPU.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <shoal/communicator.h>
#include <shoal/cuda.h>

#include "kernels/parameters.h"
#include "src/cuda/board.h"
#include "src/cuda/cuda_api.h"

namespace shoal::cuda {

/// How data moves. The same on all ranks.
enum class Route : std::uint8_t {
  peer,   ///< one node: kernels read the memory of the other ranks
  rails,  ///< several nodes: as peer inside them; the shares go between nodes through the host. all_reduce only
  host,   ///< everything goes through the host
};

/// A piece of a call that the host's engine works on while the stream waits for its flag.
struct Tile {
  DeviceGroup* group = nullptr;
  StreamCall* call = nullptr;
  Communicator* via = nullptr;  ///< the ranks that take part
  Signature what;               ///< count: of the piece, as the communicator's call takes it
  std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::uint32_t* flag = nullptr;
  std::uint32_t value = 0;  ///< of the flag, when the result is there
};

struct GroupState;

/// One call. What is below `tiles` is guarded by GroupState::mutex.
struct StreamCall {
  explicit StreamCall(std::shared_ptr<GroupState> its_state) : state(std::move(its_state)) {}
  StreamCall(const StreamCall&) = delete;
  StreamCall& operator=(const StreamCall&) = delete;
  ~StreamCall();

  std::shared_ptr<GroupState> state;
  std::uint64_t sequence = 0;
  Signature signature;
  std::chrono::steady_clock::time_point deadline;
  std::chrono::milliseconds timeout{};
  std::uint32_t last_tick = 0;
  Event event = nullptr;   ///< recorded behind the call; back in the pool when nobody holds the call any more
  std::deque<Tile> tiles;  ///< here because the stream comes to them later

  bool ended = false;
  Status outcome;
  int tiles_in_engine = 0;  ///< that the host's engine will still speak of
};

/// What calls, handles and the group's thread share; outlives the group as long as handles do.
struct GroupState {
  CudaApi* api = nullptr;
  std::mutex mutex;
  Status failure;                                     ///< why the group is closed
  std::deque<std::shared_ptr<StreamCall>> in_flight;  ///< those whose event has not been seen to happen, oldest first
  std::mutex events_mutex;
  std::vector<Event> events;  ///< unused; guarded by events_mutex
  Board* board = nullptr;     ///< null when there is none any more
  int ranks_on_board = 0;

  ~GroupState();
  /// Looks whether `call` has ended. mutex is held.
  void look_at(StreamCall& call);
  /// Forgets the calls that have ended, from the oldest on. mutex is held.
  void prune();
};

/// Blocks until `call` has ended; its outcome.
Status wait_for(StreamCall& call);

/// Thread rule: calls from any thread, one at a time (a mutex sees to it).
class DeviceGroup {
 public:
  static Result<std::unique_ptr<DeviceGroup>> create(CudaApi& api, Communicator& communicator, StreamOptions options);
  /// What users hold of it.
  static std::unique_ptr<StreamCommunicator> wrap(std::unique_ptr<DeviceGroup> group);
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;
  ~DeviceGroup();

  /// `input` and `output` as Communicator takes them; of a broadcast both are the buffer.
  Result<std::shared_ptr<StreamCall>> call(const Signature& signature, const void* input, void* output, Stream stream,
                                           std::optional<std::chrono::milliseconds> timeout);
  Status register_buffer(const void* buffer);
  /// How long the destructor waits for the other ranks.
  void leave_within(std::chrono::milliseconds limit) { farewell_.timeout = limit; }
  void abort(const std::string& reason);
  [[nodiscard]] Status status() const;
  [[nodiscard]] std::string route() const;

 private:
  using Clock = std::chrono::steady_clock;

  /// The elements from `begin` on, in a slot of the memory for pieces.
  struct Piece {
    std::uint32_t number = 0;
    std::size_t slot = 0;
    std::size_t begin = 0;
    std::size_t count = 0;
  };
  /// A call while it is being enqueued.
  struct Enqueuing {
    StreamCall* call = nullptr;
    const std::byte* input = nullptr;
    std::byte* output = nullptr;
    Stream stream = nullptr;
    std::size_t element_bytes = 0;
    Route route = Route::peer;
    std::optional<kernels::Place> registered;  ///< where the peers find the input themselves
  };

  DeviceGroup(CudaApi& api, Communicator& communicator, StreamOptions options);

  // Setting up (device_group.cc). Every step is collective and ends alike on all ranks.
  Status set_up();
  Status make_groups();
  Status make_board_and_staging();
  Status map_staging();
  Status make_pinned_memory();
  Status agree_on_fusing();
  void close_imports();
  void give_back_memory();
  bool wait_until_drained();
  Status everybody(const Status& own, Communicator& among, const char* what);
  [[nodiscard]] std::size_t slot_count() const noexcept { return lookahead_ + 2; }

  // Enqueuing (device_calls.cc).
  Status check(const Signature& signature, const void* input, const void* output, Stream stream) const;
  Status check_buffer(const char* name, const void* buffer, std::size_t bytes) const;
  Status enqueue(Enqueuing& e);
  [[nodiscard]] std::size_t elements_of_piece(const Enqueuing& e) const;
  Status begin_piece(Enqueuing& e, const Piece& piece);
  Status end_piece(Enqueuing& e, const Piece& piece);
  [[nodiscard]] std::optional<kernels::Place> find_registered(const Enqueuing& e) const;

  // Through peers' memory (node_stage.cc).
  Status give(Enqueuing& e, const Piece& piece);
  Status meet(Enqueuing& e, const Piece* announced, bool waits);
  Status fold_all(Enqueuing& e, const Piece& piece);
  Status fold_share(Enqueuing& e, const Piece& piece, int divisor);
  Status gather_shares(Enqueuing& e, const Piece& piece);
  Status fold_block(Enqueuing& e, const Piece& piece);
  Status take_blocks(Enqueuing& e, const Piece& piece);
  Status take_from_root(Enqueuing& e, const Piece& piece);
  Status all_reduce_fused(Enqueuing& e, const Piece& piece);
  [[nodiscard]] bool one_shot(const Enqueuing& e) const noexcept;
  [[nodiscard]] kernels::Source given_by(int rank, const Piece& piece, std::size_t offset_bytes) const;
  [[nodiscard]] std::size_t input_offset(std::size_t slot) const noexcept;
  [[nodiscard]] std::size_t result_offset(std::size_t slot) const noexcept;

  // Through the host (host_stage.cc).
  Status hand_over(Enqueuing& e, const Piece& piece, Communicator& via, const Signature& what, std::byte* input,
                   std::byte* output);
  Status await_tile(Enqueuing& e, const Piece& piece);
  Status share_to_host(Enqueuing& e, const Piece& piece);
  Status share_from_host(Enqueuing& e, const Piece& piece);
  Status piece_to_host(Enqueuing& e, const Piece& piece);
  Status piece_from_host(Enqueuing& e, const Piece& piece);
  static void tile_arrived(void* tile);
  void start_tile(Tile& tile);
  void end_tile(Tile& tile, const Status& outcome);

  // The group's thread (watcher.cc).
  void watch();
  void note_failure(const Status& cause);
  void fail(std::unique_lock<std::mutex>& lock);
  void let_streams_go_on();
  void look_out();
  void stop_looking_out();
  [[nodiscard]] Status late(const StreamCall& call) const;

  CudaApi& api_;
  Communicator& communicator_;
  StreamOptions options_;
  std::chrono::milliseconds timeout_;
  CallOptions farewell_;  ///< of the destructor's barriers
  int device_ = 0;
  DeviceDescription description_;
  Route route_ = Route::host;
  std::string why_host_;  ///< why the memory of others is not read
  bool fuses_ = false;
  int node_rank_ = 0;
  int node_size_ = 1;
  std::vector<int> node_ranks_;  ///< the communicator's rank of each rank of the node

  std::unique_ptr<Communicator> all_;   ///< all ranks; its closing closes this group
  std::unique_ptr<Communicator> node_;  ///< of this node
  std::unique_ptr<Communicator> rail_;  ///< Route::rails: those of this rank's place in the other nodes

  std::unique_ptr<Board> board_;
  bool board_pinned_ = false;
  std::size_t lookahead_ = 0;  ///< pieces that begin before the oldest has ended: hides what the host takes
  std::size_t slot_bytes_ = 0;
  std::byte* staging_ =
      nullptr;  ///< device memory: flags of fused kernels, then inputs of all slots, then results of all slots
  std::vector<std::byte*> peers_;  ///< the same of each rank of the node, as mapped here
  struct Words;                    ///< see make_pinned_memory
  Words* words_ = nullptr;         ///< pinned
  std::byte* tiles_ = nullptr;     ///< pinned, slot_count() * slot_bytes_; null where nothing goes through the host
  struct Registered {
    std::uint64_t allocation = 0;
    std::byte* base = nullptr;
    std::size_t bytes = 0;
  };
  std::vector<Registered> registered_;   ///< own allocations that peers have mapped; number 0 is staging_
  std::vector<std::size_t> buffers_of_;  ///< how many of each rank are mapped
  std::vector<void*> imported_;

  std::mutex calls_mutex_;  ///< held while a call is enqueued; before GroupState::mutex
  std::uint64_t sequence_ = 0;
  std::atomic<std::uint32_t> tick_{0};   ///< the last value of this rank's flags that is enqueued; the thread reads it, too
  std::uint32_t epoch_ = 0;              ///< of fused kernels
  std::atomic<std::uint32_t> piece_{0};  ///< pieces enqueued so far; likewise
  Stream last_stream_ = nullptr;
  std::shared_ptr<StreamCall> last_call_;
  std::vector<std::shared_ptr<StreamCall>> broken_;  ///< of which a part is enqueued, and no event behind it

  std::shared_ptr<GroupState> state_;
  std::condition_variable news_;  ///< with GroupState::mutex
  std::deque<Tile*> arrived_;
  std::optional<Status> noted_;  ///< a failure that the thread has not seen yet
  bool stopping_ = false;
  Clock::time_point next_look_;  ///< when the thread wakes by itself
  bool looking_out_ = false;     ///< see look_out()
  Clock::time_point looking_out_until_;
  Work lookout_;
  std::array<std::byte, 2> lookout_bytes_{};
  std::thread thread_;
};

}  // namespace shoal::cuda
