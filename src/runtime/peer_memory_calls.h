// Calls whose data goes through memory that all ranks of a node see, beside the links.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/ring_queue.h"
#include "src/device/device.h"
#include "src/peer_memory/slots.h"
#include "src/plan/operation.h"
#include "transports/transport.h"

namespace shoal {

/// Runs the fused forms of Programs over the shared windows of a transport, one call at a time.
///
/// *one_shot*, for small messages: every rank writes its contribution into its window, and reads what it needs from the
/// windows of the peers that have it (peer_memory/part.h). A rank that needs no data, like the root of a broadcast, waits for
/// no peer and may be up to kOneShotSlots - 1 calls ahead. It compares the peers' signatures of a call with its own later, at
/// the latest before it writes the call's slot again.
///
/// *zero-copy*, for larger messages: every rank writes into its window where its buffers are. When all ranks have entered,
/// each does its part in the peers' memory; when all have done so, the call has ended. If the peers cannot reach the buffers
/// of one rank, all ranks see it and use the links instead. Later calls have to wait until that is decided, since calls keep
/// their order on the links. Two kinds of calls are zero-copy:
/// - *direct* all_reduce: each rank folds its share of the message out of all inputs, in rank order, and writes the result
///   into all outputs. Only the rank that folds a share reads it, so inputs may be outputs. For buffers in shared memory
///   (mem_alloc), and for any where the system lets processes copy from and to each other's memory and that was measured to be
///   faster (peer_memory/moves.h).
/// - calls that only move data (peer_memory/moves.h), under the same conditions: one copy.
///
/// A rank sets `writing` (kGuardWriting) before it checks the peers' `revoked` flags (kGuardRevoked). A rank that aborts sets
/// `revoked`, then waits until no peer is writing (at most 250 ms). So a call that has failed leaves buffers alone that belong
/// to the caller again.
///
/// Thread rule: the executor's driver.
class PeerMemoryCalls {
 public:
  /// Without windows: takes() nothing.
  PeerMemoryCalls() = default;
  /// `windows`: of every rank of the communicator, in memory that all of them see; `members`: their ranks in `transport`.
  PeerMemoryCalls(Transport& transport, std::vector<std::span<std::byte>> windows, std::vector<int> members, int rank,
                  const Device& device);

  [[nodiscard]] bool available() const noexcept { return transport_ != nullptr; }
  /// The room in a window for contributions to one_shot calls.
  [[nodiscard]] const OneShotRoom& room() const noexcept { return room_; }
  [[nodiscard]] std::string_view transport_name() const noexcept { return transport_->name(); }
  /// Whether a call with `plan` starts here.
  [[nodiscard]] bool takes(const Plan& plan) const noexcept { return available() && (plan.one_shot_window || meets(plan)); }

  enum class Attempt { ended, published, held };
  /// Runs a one_shot call in this thread if the data that it needs of peers arrives within `looks` polls: `ended`, and the
  /// result is in the output. Otherwise the call continues as an Operation. `published`: the peers see this rank's part
  /// already, and the Operation must say so; `held`: peers are so far behind that no slot is free. Only while no other call is
  /// here.
  Attempt try_one_shot(const Plan& plan, const CallSignature& signature, std::uint64_t sequence, const void* input,
                       void* output, int looks);

  void push(internal::Operation* operation);
  /// Aborts all calls. Afterwards no peer writes into the buffers of these calls.
  void clear();
  [[nodiscard]] std::size_t size() const noexcept { return calls_.size(); }
  [[nodiscard]] internal::Operation* front() noexcept { return calls_.front(); }
  /// A call may still have to use the links.
  [[nodiscard]] bool undecided() const noexcept { return undecided_; }

  struct Advance {
    bool moved = false;
    internal::Operation* to_links = nullptr;  ///< no longer here: start it on the links
    int odd_rank = -1;                        ///< set: a mismatch; in call `sequence` this rank has signature `ours`, and
    std::uint64_t its_sequence = 0;           ///< the odd rank has `theirs` in this call: the same, or a later one
    std::uint64_t sequence = 0;
    CallSignature theirs;
    CallSignature ours;

    /// `its_flag` and `flag` are the flags of the two calls.
    void set_odd(std::size_t rank, std::uint64_t its_flag, const CallSignature& its, std::uint64_t flag,
                 const CallSignature& own) noexcept {
      odd_rank = static_cast<int>(rank);
      its_sequence = its_flag - 1;
      sequence = flag - 1;
      theirs = its;
      ours = own;
    }
  };
  /// Does what can be done now for the oldest call.
  Advance advance();
  /// Why a peer's memory could not be reached in advance(); ok where it could.
  Status take_failure() { return std::exchange(failure_, Status()); }

  /// The rank of the transport for which the oldest call waits, by the last advance(); kNoWriter where there is no call, and
  /// kAnyWriter where it is not known. One rank at a time: to be woken by each of many would cost more.
  [[nodiscard]] int awaited_writer() const noexcept {
    if (calls_.empty()) return Transport::kNoWriter;
    return missing_ < 0 ? Transport::kAnyWriter : member(missing_);
  }
  /// Whether `operation` is the oldest call, this rank has entered it, and it still waits for `rank`.
  [[nodiscard]] bool awaits(const internal::Operation& operation, int rank) noexcept;

 private:
  static constexpr std::size_t kBlockBytes = 16 << 10;
  static constexpr std::size_t kReadBytes = 64 << 10;  // per copy by the kernel; one call costs as much as copying 10 KiB
  // Of one rank. Results of larger messages are written past the caches: they would not stay there until a rank reads them.
  static constexpr std::size_t kCachedBytes = 4 << 20;
  static constexpr int kLooksAtOnce = 32;                  // polls before the processor is told that this is a spin loop
  static constexpr std::size_t kBytesPerPass = 256 << 10;  // between two checks of deadlines and failures
  static constexpr std::size_t kLocalBytes = 16 << 20;     // copied locally by a rank when it enters: some milliseconds

  [[nodiscard]] static bool meets(const Plan& plan) noexcept { return plan.zero_copy_reduce || plan.zero_copy_move; }
  [[nodiscard]] std::span<std::byte> window(int rank) const noexcept { return windows_[static_cast<std::size_t>(rank)]; }
  /// This rank's contribution to a one_shot call, and where the result goes.
  struct Contribution {
    const Plan& plan;
    const CallSignature& signature;
    std::uint64_t flag;
    const std::byte* input;
    std::byte* output;
  };
  /// False where the slot or the place is still in use, or `odd_rank` is set. Does not wake sleeping peers: notify() comes
  /// after.
  bool try_publish(const Contribution& mine, Advance& result);
  /// True when all data that this rank needs was there and has been taken; or `odd_rank` is set.
  bool take_all(const Contribution& mine, Advance& result);
  /// Whether `rank` has begun the call of `slot`, which `flag` and `signature` identify; or `odd_rank` is set.
  bool has_come(std::size_t rank, const OneShotSlot& slot, std::uint64_t flag, const CallSignature& signature,
                Advance& result) const noexcept;
  /// Goes on to the next call that all peers have begun.
  bool meet_next(Advance& result) noexcept;
  /// Notes for which rank the call waits; false.
  bool misses(std::size_t rank) noexcept {
    missing_ = static_cast<int>(rank);
    return false;
  }
  Advance advance_one_shot(internal::Operation* operation);
  Advance advance_zero_copy(internal::Operation* operation);
  [[nodiscard]] bool may_enter() noexcept;
  void enter(internal::Operation* operation);
  /// Where the peers find a buffer of this rank; nothing where they cannot reach it.
  [[nodiscard]] std::optional<std::uint64_t> place_of(const Plan& plan, const std::byte* data, std::size_t bytes) const;
  /// True when every rank has entered; or `to_links` or `odd_rank` is set.
  bool all_entered(internal::Operation* operation, Advance& result);
  /// Starts this rank's part, once all have entered.
  void begin_part(internal::Operation* operation);
  bool fold_some(internal::Operation* operation);
  bool move_some(internal::Operation* operation);
  /// Wakes the peers of this communicator.
  void notify() {
    if (everybody_) return transport_->notify_peers();
    transport_->notify(members_);
  }
  [[nodiscard]] int member(int rank) const noexcept { return members_[static_cast<std::size_t>(rank)]; }
  /// Copies `bytes` of a move from `done_bytes` on.
  Status move(internal::Operation* operation, const PeerMemoryMove& what, std::size_t done_bytes, std::size_t bytes);
  /// Between the two this rank may write into the peers' memory. False: a peer has aborted.
  bool begin_writing() noexcept;
  void end_writing() noexcept;
  void reduce(const Plan& plan, std::byte* target, std::span<const std::byte* const> operands, std::size_t count) const;
  void end(internal::Operation* operation);

  Transport* transport_ = nullptr;
  const Device* device_ = nullptr;
  int rank_ = 0;
  std::vector<std::span<std::byte>> windows_;  // of every rank
  std::vector<int> members_;                   // by rank: its number in the transport
  bool everybody_ = false;                     // all ranks of the transport are members
  OneShotRoom room_;
  RingQueue<internal::Operation*> calls_;  // by sequence; the first is in progress
  bool undecided_ = false;
  int missing_ = -1;  // the first rank that the last advance() waited for; -1: none
  // One-shot calls count from 0.
  std::uint64_t one_shots_ = 0;     // ended
  std::uint64_t met_ = 0;           // that all peers are known to have begun too, with the same signature
  std::uint64_t last_meeting_ = 0;  // ZeroCopySlot::entered of the previous zero-copy call; 0: there was none
  std::uint64_t meetings_ = 0;      // zero-copy calls that ended, here or on the links
  // State of the zero-copy call in progress, the first of calls_.
  const internal::Operation* met_in_ = nullptr;  // null until all ranks have entered
  std::size_t move_ = 0;                         // index of the move in progress
  std::size_t moved_bytes_ = 0;                  // of that move
  Status failure_;
  std::vector<const std::byte*> inputs_;    // by rank; null: in private memory of that rank
  std::vector<std::byte*> outputs_;         // by rank; the same
  std::vector<const std::byte*> operands_;  // by rank; scratch
  std::size_t folded_elements_ = 0;
  alignas(64) std::array<std::byte, kBlockBytes> block_;
  std::vector<std::byte> read_;  // kReadBytes for each rank; allocated when private memory is first read
};

}  // namespace shoal
