// Calls whose data goes through memory that all ranks of a node see, beside the links.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "src/device/device.h"
#include "src/engine/operation.h"
#include "src/engine/ring_queue.h"
#include "src/engine/window_slots.h"
#include "transports/transport.h"

namespace shoal {

/// Runs the fused forms of two Programs over the shared windows of a transport, one call at a time.
///
/// *one_shot*: every rank copies its input into its window and folds what all have put there. For small messages.
///
/// *direct*, where the buffers of all ranks lie in shared memory (mem_alloc): every rank says in its window where its buffers
/// are. When all have, each folds its share of the message out of all inputs, in rank order, and writes the result into all
/// outputs; when all have done so the call has ended. Nobody reads a share but the rank that folds it, so inputs may be
/// outputs. If the buffers of one rank are ordinary ones, all ranks see it and take the links instead: what comes later has to
/// wait until that is decided, since calls keep their order on the links.
///
/// Thread rule: the executor's driver.
class WindowCalls {
 public:
  /// None: takes() nothing.
  WindowCalls() = default;
  /// `transport` must show a window of every rank.
  WindowCalls(Transport& transport, int rank, int ranks, const Device& device);

  [[nodiscard]] bool available() const noexcept { return transport_ != nullptr; }
  /// Payload of the largest one_shot call.
  [[nodiscard]] std::size_t one_shot_bytes() const noexcept;
  [[nodiscard]] std::string_view transport_name() const noexcept { return transport_->name(); }
  /// Whether a call with `plan` starts here.
  [[nodiscard]] bool takes(const Plan& plan) const noexcept {
    return available() && (plan.one_shot_window || plan.shared_fold);
  }

  /// Runs a one_shot call right here if the others' parts come within some `looks`: true, and the result is there. False: this
  /// rank's part has been published, and the call goes on as an Operation that says so. Only while no other call is here.
  bool try_one_shot(const Plan& plan, std::uint64_t sequence, const void* input, void* output, int looks);

  void push(internal::Operation* operation);
  void clear();
  [[nodiscard]] std::size_t size() const noexcept { return calls_.size(); }
  [[nodiscard]] internal::Operation* front() noexcept { return calls_.front(); }
  /// A call may yet have to take the links.
  [[nodiscard]] bool undecided() const noexcept { return undecided_; }

  struct Advance {
    bool moved = false;
    internal::Operation* to_links = nullptr;  ///< no longer here: start it on the links
    int odd_rank = -1;                        ///< set: this rank is in another call, `theirs`
    CallSignature theirs;

    void set_odd(std::size_t rank, const CallSignature& signature) noexcept {
      odd_rank = static_cast<int>(rank);
      theirs = signature;
    }
  };
  /// Does what can be done for the oldest call.
  Advance advance();

  /// Whether `operation` is the oldest call, this rank has entered it, and it still waits for `rank`.
  [[nodiscard]] bool awaits(const internal::Operation& operation, int rank) noexcept;

 private:
  static constexpr std::size_t kBlockBytes = 16 << 10;
  // Of one rank. More, and results are written past the caches: they would not stay there until somebody reads them.
  static constexpr std::size_t kCachedBytes = 4 << 20;
  static constexpr int kLooksAtOnce = 32;                  // before the processor is told that this is a loop that waits
  static constexpr std::size_t kBytesPerPass = 256 << 10;  // between two looks at deadlines and failures

  [[nodiscard]] std::span<std::byte> window(int rank) const noexcept { return windows_[static_cast<std::size_t>(rank)]; }
  /// What this rank gives to a one_shot call, and where it wants the result.
  struct Contribution {
    const Plan& plan;
    std::uint64_t flag;
    const std::byte* input;
    std::byte* output;
  };
  /// The peers that sleep are not woken: transport_->notify_peers() comes after.
  void publish(const Contribution& mine);
  /// True when all parts were there and have been folded; or `odd_rank` is set.
  bool fold_all(const Contribution& mine, Advance& result);
  Advance advance_one_shot(internal::Operation* operation);
  Advance advance_shared_fold(internal::Operation* operation);
  [[nodiscard]] bool may_enter() const noexcept;
  void enter(internal::Operation* operation);
  /// True when every rank has entered; or `to_links` or `odd_rank` is set.
  bool all_entered(internal::Operation* operation, Advance& result);
  bool fold_some(internal::Operation* operation);
  void reduce(const Plan& plan, std::byte* target, std::span<const std::byte* const> operands, std::size_t count) const;
  void end(internal::Operation* operation);

  Transport* transport_ = nullptr;
  const Device* device_ = nullptr;
  int rank_ = 0;
  std::vector<std::span<std::byte>> windows_;  // of every rank
  RingQueue<internal::Operation*> calls_;      // by sequence; the first is under way
  bool undecided_ = false;
  std::uint64_t one_shots_ = 0;     // ended
  std::uint64_t last_meeting_ = 0;  // MeetingSlot::entered of the previous one; 0: there was none
  std::uint64_t meetings_ = 0;      // ended, here or on the links
  // Of the shared fold under way, the first of the calls.
  const internal::Operation* folding_ = nullptr;  // null until all have met
  std::vector<const std::byte*> inputs_;          // by rank
  std::vector<std::byte*> outputs_;               // by rank
  std::vector<const std::byte*> operands_;        // by rank; scratch
  std::size_t folded_elements_ = 0;
  alignas(64) std::array<std::byte, kBlockBytes> block_;
};

}  // namespace shoal
