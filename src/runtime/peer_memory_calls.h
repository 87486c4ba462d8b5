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
/// *one_shot*, for small messages: every rank puts what it gives into its window, and takes what concerns it out of the windows
/// of those whose data it needs (peer_memory_part.h). Who needs nothing, like the root of a broadcast, waits for nobody and may
/// be up to kOneShotSlots - 1 calls ahead; it compares what the others say of a call with its own words later, at the latest
/// when it writes the call's slot again.
///
/// *Meetings*, for larger ones: every rank says in its window where its buffers are. When all have, each does its part in the
/// others' memory; when all have done so the call has ended. If the others do not reach the buffers of one rank, all ranks see
/// it and take the links instead: what comes later has to wait until that is decided, since calls keep their order on the
/// links. Two kinds of calls meet:
/// - *direct* all_reduce: each rank folds its share of the message out of all inputs, in rank order, and writes the result into
///   all outputs. Nobody reads a share but the rank that folds it, so inputs may be outputs. For buffers in shared memory
///   (mem_alloc), and for any where the system lets processes copy from and to each other's memory and that was measured to be
///   faster (peer_memory_moves.h).
/// - what only moves data (peer_memory_moves.h), under the same conditions: one copy.
///
/// Who writes into others' memory says so before it looks whether they have given up; who gives up says so and waits, for a
/// quarter of a second at most, until nobody writes. So a call that has failed leaves buffers alone that belong to the caller
/// again.
///
/// Thread rule: the executor's driver.
class PeerMemoryCalls {
 public:
  /// None: takes() nothing.
  PeerMemoryCalls() = default;
  /// `windows`: of every rank of the communicator, in memory that all of them see; `members`: what `transport` calls them.
  PeerMemoryCalls(Transport& transport, std::vector<std::span<std::byte>> windows, std::vector<int> members, int rank,
                  const Device& device);

  [[nodiscard]] bool available() const noexcept { return transport_ != nullptr; }
  /// For what one_shot calls give.
  [[nodiscard]] const OneShotRoom& room() const noexcept { return room_; }
  [[nodiscard]] std::string_view transport_name() const noexcept { return transport_->name(); }
  /// Whether a call with `plan` starts here.
  [[nodiscard]] bool takes(const Plan& plan) const noexcept { return available() && (plan.one_shot_window || meets(plan)); }

  enum class Attempt { ended, published, held };
  /// Runs a one_shot call right here if what it needs of others comes within some `looks`: `ended`, and the result is there.
  /// Otherwise the call goes on as an Operation: where this rank's part has been published already, one that says so; `held`:
  /// others are so far behind that there is no slot. Only while no other call is here.
  Attempt try_one_shot(const Plan& plan, const CallSignature& signature, std::uint64_t sequence, const void* input,
                       void* output, int looks);

  void push(internal::Operation* operation);
  /// Gives all calls up. Afterwards nobody writes into the buffers of these calls.
  void clear();
  [[nodiscard]] std::size_t size() const noexcept { return calls_.size(); }
  [[nodiscard]] internal::Operation* front() noexcept { return calls_.front(); }
  /// A call may yet have to take the links.
  [[nodiscard]] bool undecided() const noexcept { return undecided_; }

  struct Advance {
    bool moved = false;
    internal::Operation* to_links = nullptr;  ///< no longer here: start it on the links
    int odd_rank = -1;                        ///< set: in call `sequence` we say `ours`, and this rank `theirs` in
    std::uint64_t its_sequence = 0;           ///< that one, or a later one
    std::uint64_t sequence = 0;
    CallSignature theirs;
    CallSignature ours;

    /// Flags are those of the calls.
    void set_odd(std::size_t rank, std::uint64_t its_flag, const CallSignature& its, std::uint64_t flag,
                 const CallSignature& own) noexcept {
      odd_rank = static_cast<int>(rank);
      its_sequence = its_flag - 1;
      sequence = flag - 1;
      theirs = its;
      ours = own;
    }
  };
  /// Does what can be done for the oldest call.
  Advance advance();
  /// Why a peer's memory could not be reached in advance(); ok where it could.
  Status take_failure() { return std::exchange(failure_, Status()); }

  /// Whether `operation` is the oldest call, this rank has entered it, and it still waits for `rank`.
  [[nodiscard]] bool awaits(const internal::Operation& operation, int rank) noexcept;

 private:
  static constexpr std::size_t kBlockBytes = 16 << 10;
  static constexpr std::size_t kReadBytes = 64 << 10;  // at once by the kernel, whose call costs as much as 10 KiB
  // Of one rank. More, and results are written past the caches: they would not stay there until somebody reads them.
  static constexpr std::size_t kCachedBytes = 4 << 20;
  static constexpr int kLooksAtOnce = 32;                  // before the processor is told that this is a loop that waits
  static constexpr std::size_t kBytesPerPass = 256 << 10;  // between two looks at deadlines and failures
  static constexpr std::size_t kLocalBytes = 16 << 20;     // that a rank copies for itself when it enters: some milliseconds

  [[nodiscard]] static bool meets(const Plan& plan) noexcept { return plan.zero_copy_reduce || plan.zero_copy_move; }
  [[nodiscard]] std::span<std::byte> window(int rank) const noexcept { return windows_[static_cast<std::size_t>(rank)]; }
  /// What this rank gives to a one_shot call, and where it wants the result.
  struct Contribution {
    const Plan& plan;
    const CallSignature& signature;
    std::uint64_t flag;
    const std::byte* input;
    std::byte* output;
  };
  /// False where the slot or the place is still in use, or `odd_rank` is set. The peers that sleep are not woken:
  /// notify() comes after.
  bool try_publish(const Contribution& mine, Advance& result);
  /// True when all that this rank takes was there and has been taken; or `odd_rank` is set.
  bool take_all(const Contribution& mine, Advance& result);
  /// Whether `rank` has begun the call of `slot`, which `flag` and `signature` say what it is; or `odd_rank` is set.
  bool has_come(std::size_t rank, const OneShotSlot& slot, std::uint64_t flag, const CallSignature& signature,
                Advance& result) const noexcept;
  /// Goes on to the next call that all others have begun.
  bool meet_next(Advance& result) noexcept;
  Advance advance_one_shot(internal::Operation* operation);
  Advance advance_zero_copy(internal::Operation* operation);
  [[nodiscard]] bool may_enter() const noexcept;
  void enter(internal::Operation* operation);
  /// Where the others find a buffer of this rank; nothing where they do not.
  [[nodiscard]] std::optional<std::uint64_t> place_of(const Plan& plan, const std::byte* data, std::size_t bytes) const;
  /// True when every rank has entered; or `to_links` or `odd_rank` is set.
  bool all_entered(internal::Operation* operation, Advance& result);
  /// Starts this rank's part, once all have entered.
  void begin_part(internal::Operation* operation);
  bool fold_some(internal::Operation* operation);
  bool move_some(internal::Operation* operation);
  /// Wakes the others of this communicator.
  void notify() {
    if (everybody_) return transport_->notify_peers();
    transport_->notify(members_);
  }
  [[nodiscard]] int member(int rank) const noexcept { return members_[static_cast<std::size_t>(rank)]; }
  /// Copies `bytes` of a move from `done_bytes` on.
  Status move(internal::Operation* operation, const PeerMemoryMove& what, std::size_t done_bytes, std::size_t bytes);
  /// Between the two this rank may write into the memory of others. False: one of them has given up.
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
  RingQueue<internal::Operation*> calls_;  // by sequence; the first is under way
  bool undecided_ = false;
  // One-shot calls count from 0.
  std::uint64_t one_shots_ = 0;     // ended
  std::uint64_t met_ = 0;           // that all others have begun too, with the same words, for all this rank knows
  std::uint64_t last_meeting_ = 0;  // ZeroCopySlot::entered of the previous one; 0: there was none
  std::uint64_t meetings_ = 0;      // ended, here or on the links
  // Of the meeting under way, the first of the calls.
  const internal::Operation* met_in_ = nullptr;  // null until all have met
  std::size_t move_ = 0;                         // under way
  std::size_t moved_bytes_ = 0;                  // of it
  Status failure_;
  std::vector<const std::byte*> inputs_;    // by rank; null: in memory that nobody shares
  std::vector<std::byte*> outputs_;         // by rank; the same
  std::vector<const std::byte*> operands_;  // by rank; scratch
  std::size_t folded_elements_ = 0;
  alignas(64) std::array<std::byte, kBlockBytes> block_;
  std::vector<std::byte> read_;  // of each rank kReadBytes; once memory that nobody shares is read
};

}  // namespace shoal
