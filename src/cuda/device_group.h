// DeviceGroup: the implementation of a StreamCommunicator.
//
// A call only enqueues work on the caller's stream. Streams of different ranks wait for each other by flags in the host's
// memory (Board), never inside a kernel unless kernels are known to run together. Where data goes through the host, a thread
// of the group hands tiles to the host's engine and raises flags when they are back. So the caller never waits, and several
// ranks may share a GPU.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <shoal/communicator.h>
#include <shoal/cuda.h>

#include "kernels/parameters.h"
#include "src/communicator/communicator_impl.h"
#include "src/cuda/board.h"
#include "src/cuda/cuda_api.h"
#include "src/cuda/shares.h"

namespace shoal::cuda {

/// How data moves. The same on all ranks.
enum class Route : std::uint8_t {
  peer,   ///< one node: kernels read the memory of the other ranks
  rails,  ///< several nodes: as peer inside them, between nodes through the host, where on_rails() says so
  host,   ///< everything goes through the host
};

/// In front of each piece of a message between two ranks, so that both detect where they disagree about it.
struct MailHeader {
  std::uint64_t bytes = 0;  ///< of the whole message
  std::uint64_t piece = 0;
  std::uint64_t type = 0;

  friend bool operator==(const MailHeader&, const MailHeader&) = default;
};

/// A piece of a call that the host's engine works on while the stream waits for its flag.
struct Tile {
  StreamCall* call = nullptr;
  Communicator* via = nullptr;      ///< the ranks that take part
  Request what;                     ///< of the piece
  std::vector<std::size_t> counts;  ///< what.counts, where shares differ
  std::byte* message = nullptr;     ///< of a send or receive: the header, then the data
  MailHeader header;                ///< of the message
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
  std::size_t messages = 0;         ///< of an exchange; the signature is the first one's. 0: a collective
  std::vector<std::size_t> counts;  ///< where shares differ
  std::chrono::steady_clock::time_point deadline;
  std::chrono::milliseconds timeout{};
  std::uint32_t last_tick = 0;
  Event event = nullptr;   ///< recorded behind the call; back in the pool when the last reference to the call is dropped
  std::deque<Tile> tiles;  ///< kept here because the stream reaches them later

  bool ended = false;
  Status outcome;
  int open_tiles = 0;  ///< that the stream has reached and that have not ended

  [[nodiscard]] std::string name() const;  ///< in errors
};

/// What calls, handles, streams and the group's thread share. Outlives the group as long as handles exist, or a stuck stream.
struct GroupState {
  CudaApi* api = nullptr;
  std::mutex mutex;                                   ///< guards all but `events`
  std::condition_variable news;                       ///< for the group's thread
  Status failure;                                     ///< why the group is closed
  std::optional<Status> noted;                        ///< a failure that the thread has not handled yet
  std::deque<std::shared_ptr<StreamCall>> in_flight;  ///< those whose event has not been seen to happen, oldest first
  std::vector<std::shared_ptr<StreamCall>> broken;    ///< of which a part is enqueued, and no event behind it
  std::deque<Tile*> arrived;                          ///< that streams have reached and the thread has not started
  std::mutex events_mutex;
  std::vector<Event> events;  ///< unused; guarded by events_mutex
  Board* board = nullptr;     ///< null when there is no board any more
  int ranks_on_board = 0;

  ~GroupState();
  /// Closes the group soon, unless it is closed or closing. mutex is held.
  void note(const Status& cause);
  /// Checks whether `call` has ended. mutex is held.
  void look_at(StreamCall& call);
  /// Forgets the calls that have ended, from the oldest on. mutex is held.
  void prune();
};

/// Blocks until `call` has ended; returns its outcome.
Status wait_for(StreamCall& call);

/// Thread rule: calls from any thread; a mutex admits one at a time.
class DeviceGroup {
 public:
  static Result<std::unique_ptr<DeviceGroup>> create(CudaApi& api, Communicator& communicator, StreamOptions options);
  /// Wraps the group into the class that users hold.
  static std::unique_ptr<StreamCommunicator> wrap(std::unique_ptr<DeviceGroup> group);
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;
  ~DeviceGroup();

  using Timeout = std::optional<std::chrono::milliseconds>;

  Result<std::shared_ptr<StreamCall>> call(const Request& request, Stream stream, Timeout timeout);
  Result<std::shared_ptr<StreamCall>> exchange(std::span<const Request> messages, Stream stream, Timeout timeout);
  Status register_buffer(const void* buffer);
  /// How long the destructor waits for the other ranks.
  void leave_within(std::chrono::milliseconds limit) { farewell_.timeout = limit; }
  Status deregister_buffer(const void* buffer);
  void abort(const std::string& reason);
  [[nodiscard]] Status status() const;
  [[nodiscard]] std::string route() const;

 private:
  using Clock = std::chrono::steady_clock;

  /// A part of a message, in a slot of the memory for pieces.
  struct Piece {
    std::uint32_t number = 0;
    std::size_t slot = 0;
    std::vector<Run> runs;  ///< of each share

    [[nodiscard]] const Run& whole() const { return runs.front(); }  ///< of a message that is not dealt in shares
  };
  /// A collective while it is being enqueued.
  struct Enqueuing {
    std::shared_ptr<StreamCall> call;
    Collective what;
    /// Where the message begins, also where the buffer holds this rank's share of it only.
    std::uintptr_t input = 0;
    std::uintptr_t output = 0;
    Stream stream = nullptr;
    Route route = Route::peer;
    std::size_t element_bytes = 0;
    std::size_t rank = 0;
    Part gives = Part::nothing;
    Part takes = Part::nothing;
    std::optional<std::uint32_t> registered;  ///< number of the buffer that holds the input, which the peers read there

    /// The call on `count` elements in host memory, without counts.
    [[nodiscard]] Request on_host(const std::byte* from, std::byte* to, std::size_t count) const noexcept {
      return {
          .kind = what.kind, .type = what.type, .op = what.op, .root = what.root, .input = from, .output = to, .count = count};
    }
    [[nodiscard]] std::size_t bytes(const Run& run) const { return run.count * element_bytes; }
    [[nodiscard]] const std::byte* input_of(const Run& run) const {
      return reinterpret_cast<const std::byte*>(input + run.begin * element_bytes);
    }
    [[nodiscard]] std::byte* output_of(const Run& run) const {
      return reinterpret_cast<std::byte*>(output + run.begin * element_bytes);
    }
  };

  DeviceGroup(CudaApi& api, Communicator& communicator, StreamOptions options);

  // Setup (device_group.cc). Every step is collective and ends alike on all ranks.
  Status set_up();
  Status make_groups();
  Status make_board_and_staging();
  Status map_staging();
  Status make_pinned_memory();
  Status agree_on_options(int asserted);
  void close_imports();
  void give_back_memory();
  bool wait_until_drained();
  [[nodiscard]] std::size_t bytes_of_slot() const;
  Status everybody(const Status& own, Communicator& among, const char* what);
  [[nodiscard]] std::size_t slot_count() const noexcept { return lookahead_ + 2; }

  // Enqueuing (device_calls.cc).
  Status check_open();
  Result<Collective> check(const Request& request, Stream stream, const Timeout& timeout) const;
  Status check_stream(const std::string& name, Stream stream) const;
  Status check_buffer(const char* name, const void* buffer, std::size_t bytes) const;
  std::shared_ptr<StreamCall> make_call(const Signature& signature, const Timeout& timeout);
  Status sign(const StreamCall& call);
  Status take_event(StreamCall& call);
  Status finish_call(const std::shared_ptr<StreamCall>& call, Stream stream, const Status& enqueued);
  Status enqueue(Enqueuing& e);
  Status enqueue_pieces(Enqueuing& e);
  Status enqueue_barrier(Enqueuing& e);
  [[nodiscard]] std::size_t pieces_of(const Enqueuing& e, const Shares& shares) const;
  [[nodiscard]] bool two_steps(const Enqueuing& e) const noexcept;
  Status begin_piece(Enqueuing& e, const Piece& piece);
  Status end_piece(Enqueuing& e, const Piece& piece);

  // Registered buffers (registration.cc).
  [[nodiscard]] std::optional<std::uint32_t> find_registered(const Enqueuing& e) const;
  [[nodiscard]] std::uint32_t number_of(std::uint64_t allocation) const;
  void* set_mapping(int rank, std::uint32_t number, void* mapped);
  Status map_offers(std::span<const MemoryHandle> offers, const std::vector<bool>& has_offer, std::vector<void*>& mapped);

  // Through peers' memory (node_stage.cc).
  Status give(Enqueuing& e, const Piece& piece);
  Status meet(Enqueuing& e, const Piece* announced, bool waits);
  [[nodiscard]] kernels::FoldParameters fold_of(const Enqueuing& e, const Piece& piece, std::size_t offset_bytes,
                                                std::size_t count) const;
  Status fold_all(Enqueuing& e, const Piece& piece);
  Status fold_share(Enqueuing& e, const Piece& piece, int divisor);
  Status fold_block(Enqueuing& e, const Piece& piece);
  Status gather_shares(Enqueuing& e, const Piece& piece);
  Status take(Enqueuing& e, const Piece& piece);
  Status all_reduce_fused(Enqueuing& e, const Piece& piece);
  /// Segments that are copied together, as many as a kernel takes at a time.
  class Copies {
   public:
    Copies(DeviceGroup& group, Stream stream) : group_(group), stream_(stream) {}
    Status add(const kernels::Source& source, std::byte* target, std::size_t bytes);
    Status flush();

   private:
    DeviceGroup& group_;
    Stream stream_;
    kernels::CopyParameters parameters_;
  };
  [[nodiscard]] bool one_shot(const Enqueuing& e) const noexcept;
  [[nodiscard]] kernels::Source given_by(int rank, const Piece& piece, std::size_t offset_bytes) const;
  [[nodiscard]] std::size_t input_offset(std::size_t slot) const noexcept;
  [[nodiscard]] std::size_t result_offset(std::size_t slot) const noexcept;

  // Both, between nodes with equal numbers of ranks (rail_stage.cc).
  struct Stack;
  [[nodiscard]] Stack stack_of(const Enqueuing& e, const Piece& piece, int place) const;
  [[nodiscard]] bool root_is_near(const Enqueuing& e) const;
  Status begin_on_rails(Enqueuing& e, const Piece& piece);
  Status end_on_rails(Enqueuing& e, const Piece& piece);
  Status stack_to_rail(Enqueuing& e, const Piece& piece, const Stack& stack);
  Status share_to_rail(Enqueuing& e, const Piece& piece, const std::byte* piece_begin);
  Status share_from_rail(Enqueuing& e, const Piece& piece, bool has_it);
  Status share_of_root_to_rail(Enqueuing& e, const Piece& piece);
  Status own_run_to_rail(Enqueuing& e, const Piece& piece);
  Status own_run_from_rail(Enqueuing& e, const Piece& piece);
  Status folded_runs_to_rail(Enqueuing& e, const Piece& piece);
  Status take_stacks(Enqueuing& e, const Piece& piece);
  Status divide(Enqueuing& e, const std::byte* sum, std::byte* target, std::byte* second, std::size_t count);

  // Through the host (host_stage.cc).
  Status hand_over(Enqueuing& e, const Piece& piece, Communicator& via, const Request& what,
                   std::vector<std::size_t> counts = {});
  Status await_tile(Enqueuing& e, const Piece& piece);
  Status piece_to_host(Enqueuing& e, const Piece& piece);
  Status piece_from_host(Enqueuing& e, const Piece& piece);
  [[nodiscard]] std::byte* taken_slot(const Enqueuing& e, const Piece& piece) const;
  static void tile_arrived(void* tile);
  void start_tile(Tile& tile);
  void end_tile(Tile& tile, Status outcome);

  // Messages between two ranks (messages.cc).
  struct Lane;
  struct Chain;
  Status all_to_all_v(Enqueuing& e);
  Status post(const std::shared_ptr<StreamCall>& call, Stream stream, Communicator& via, std::span<const Request> messages);
  Status post_piece(StreamCall& call, Stream stream, Communicator& via, Lane& lane, Chain& chain);
  Status finish_receives(Stream stream, Lane& lane, std::uint64_t until);
  Status follow_messages(const std::shared_ptr<StreamCall>& call, std::span<const Request> messages, Stream stream);
  Lane& lane_for(Stream stream);
  [[nodiscard]] std::uint32_t* chunk_done(const Lane& lane, std::size_t chunk) const;
  Status check_messages(std::span<const Request> messages, Stream stream, const Timeout& timeout) const;

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
  std::string why_host_;       ///< why peers' memory is not read
  bool run_together_ = false;  ///< the kernels of all ranks of the node are resident at once
  bool fuses_ = false;         ///< so all_reduce kernels wait for each other
  int node_rank_ = 0;
  int node_size_ = 1;
  std::vector<int> node_ranks_;          ///< the communicator's rank of each rank of the node
  std::vector<std::vector<int>> nodes_;  ///< the same of every node

  std::unique_ptr<Communicator> all_;   ///< all ranks; its closing closes this group
  std::unique_ptr<Communicator> node_;  ///< of this node
  std::unique_ptr<Communicator> rail_;  ///< Route::rails: the ranks of this rank's place in each node
  std::unique_ptr<Communicator> mail_;  ///< all ranks: for messages, whose tags are the user's

  std::unique_ptr<Board> board_;
  bool board_pinned_ = false;
  std::size_t lookahead_ = 0;  ///< pieces that begin before the oldest has ended: hides the time of the host's part
  std::size_t slot_bytes_ = 0;
  std::byte* staging_ =
      nullptr;  ///< device memory: flags of fused kernels, then inputs of all slots, then results of all slots
  std::vector<std::byte*> peers_;  ///< the same of each rank of the node, as mapped here
  struct Words;                    ///< see device_words.h
  Words* words_ = nullptr;         ///< pinned
  std::byte* tiles_ = nullptr;     ///< pinned, slot_count() * slot_bytes_; null where nothing goes through the host
  struct Registered {
    std::uint64_t allocation = 0;
    std::byte* base = nullptr;
    std::size_t bytes = 0;
    int uses = 0;  ///< times that it was registered; 0: the number is free
  };
  std::array<Registered, kernels::kMaxBuffers> registered_;      ///< own allocations; number 0 is staging_
  int registrations_ = 0;                                        ///< that are in use, but for number 0
  std::vector<std::array<void*, kernels::kMaxBuffers>> mapped_;  ///< those of each rank of the node, as mapped here

  /// Pinned memory for the messages of one stream at a time.
  struct Lane {
    std::byte* chunks = nullptr;         ///< kLaneChunks of chunk_bytes_
    std::atomic<std::uint64_t> used{0};  ///< chunks so far, in turns; read by the group's thread as well
    Stream stream = nullptr;
    std::shared_ptr<StreamCall> last;
    std::uint64_t turn = 0;  ///< value of lane_turns_ at its last use
    struct Receive {
      std::uint64_t chunk = 0;
      std::byte* target = nullptr;
      std::size_t bytes = 0;
    };
    std::deque<Receive> receives;  ///< posted by the call that is being enqueued, and not copied to their buffers yet
  };
  static constexpr std::size_t kLanes = 8;
  std::array<Lane, kLanes> lanes_;
  std::uint64_t lane_turns_ = 0;
  std::size_t chunk_bytes_ = 0;
  std::byte* lane_memory_ = nullptr;              ///< of all lanes, pinned
  using MessageKey = std::tuple<bool, int, int>;  ///< is_send, peer, tag: such messages stay in order
  std::map<MessageKey, std::pair<Stream, std::weak_ptr<StreamCall>>> last_of_key_;
  std::uint64_t message_sequence_ = 0;

  std::mutex calls_mutex_;  ///< held while a call is enqueued; before GroupState::mutex
  std::uint64_t sequence_ = 0;
  std::atomic<std::uint32_t> tick_{0};   ///< last enqueued value of this rank's flags; read by the group's thread as well
  std::uint32_t epoch_ = 0;              ///< of fused kernels
  std::atomic<std::uint32_t> piece_{0};  ///< pieces enqueued so far; likewise
  Stream last_stream_ = nullptr;
  std::shared_ptr<StreamCall> last_call_;
  Route last_route_ = Route::peer;

  std::shared_ptr<GroupState> state_;
  int with_engine_ = 0;  ///< tiles that the host's engine has started and not ended
  bool stopping_ = false;
  Clock::time_point next_look_;  ///< when the group's thread wakes without a notification
  bool looking_out_ = false;     ///< see look_out()
  Clock::time_point looking_out_until_;
  Work lookout_;
  std::array<std::byte, 2> lookout_bytes_{};
  std::thread thread_;
};

}  // namespace shoal::cuda
