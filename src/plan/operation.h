// Operation: one call in flight; what a Work points to.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <vector>

#include <shoal/communicator.h>
#include <shoal/status.h>

#include "src/diagnosis/watchdog.h"
#include "src/plan/plan.h"
#include "src/plan/scratch_pool.h"

namespace shoal {
class ProgressClient;
}

namespace shoal::internal {

/// The progress of a call on one of its links.
struct LinkProgress {
  bool call_sent = false;      ///< the link has taken this rank's signature, or needs none
  bool call_gone = false;      ///< ... and no longer needs the memory that it lies in
  bool call_received = false;  ///< the peer's signature has arrived and agrees, or none will arrive
  std::uint32_t send_index = 0;
  std::uint32_t receive_index = 0;
  std::size_t send_issued_bytes = 0;  ///< of the current send
  CallSignature said;                 ///< this rank's signature, as the link has taken it or is to take it
};

class Operation;

/// A send or recv.
struct Message {
  bool is_send = false;
  int peer = -1;  ///< rank of the communicator; -1: any (recv)
  int tag = 0;
  DataType type = DataType::float32;
  std::size_t size_bytes = 0;
  std::byte* data = nullptr;
  // Its progress.
  std::uint32_t number = 0;                 ///< counts the messages from the sender to the receiver
  std::size_t moved_bytes = 0;              ///< handed to the link, or received
  std::size_t open_bytes = 0;               ///< of memory in use by the link, or not received yet
  std::vector<std::byte> tile;              ///< announcement, with the bytes where they are few
  std::list<Operation*>::iterator place{};  ///< in the list of messages in flight
};

/// Made once and reused: an Operation belongs to its Plan's pool and returns there when the last reference is dropped. Where
/// the pool is exhausted or the Plan is not cached, it is deleted then.
///
/// Thread rule: the run state belongs to the executor's driver. The outcome is written once, before `state_` becomes kDone;
/// everything under "any thread" may be called from any thread.
class Operation {
 public:
  Operation(Plan* plan, std::unique_ptr<Plan> owned_plan, bool pooled);
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  /// A free Operation of the plan's pool, or a new one.
  static Operation* acquire(Plan* plan, std::unique_ptr<Plan> owned_plan);

  /// Takes the scratch memory that its Plan needs, until the call ends. False where there is none.
  bool take_scratch();
  /// Gives back an Operation from acquire() that has not been passed on.
  void release() noexcept;
  /// Makes a pooled Operation ready for another call, after take_scratch(). One reference, held by the caller.
  void reset(std::shared_ptr<ProgressClient> client, std::uint64_t sequence, std::chrono::steady_clock::time_point deadline,
             const void* input, void* output);

  // Any thread.
  /// The call is in a call group that has not ended. The thread that takes it out posts it.
  void put_into_group() noexcept { in_group_.store(true, std::memory_order_release); }
  bool take_from_group() noexcept {
    return in_group_.load(std::memory_order_relaxed) && in_group_.exchange(false, std::memory_order_acq_rel);
  }
  /// A thread waits for its end: what the rank is in, of several messages in flight.
  void set_awaited() noexcept { awaited_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool awaited() const noexcept { return awaited_.load(std::memory_order_relaxed); }
  void add_reference() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void drop_reference();
  [[nodiscard]] bool done() const noexcept { return state_.load(std::memory_order_acquire) == kDone; }
  [[nodiscard]] const Status& outcome() const noexcept { return outcome_; }  ///< valid once done()
  /// Sleeps until done() or `deadline`.
  void sleep_until(std::chrono::steady_clock::time_point deadline) noexcept;
  Status set_callback(std::function<void(const Status&)> callback);
  /// To be set before the call is posted: `step` makes the caller's result. It runs in the thread that ends the call, only
  /// where the call succeeds, before any thread sees the outcome.
  void set_last_step(std::function<void()> step) { last_step_ = std::move(step); }
  /// Whether this thread is in a callback of an Operation that it has just ended. It holds the driver lock then, so no call
  /// that it waited for would make progress.
  [[nodiscard]] static bool in_callback() noexcept { return callbacks_ != 0; }
  [[nodiscard]] std::uint64_t sequence() const noexcept { return sequence_; }
  /// The client that runs the call; kept alive until the last reference is dropped.
  [[nodiscard]] const std::shared_ptr<ProgressClient>& client() const noexcept { return client_; }
  [[nodiscard]] std::chrono::steady_clock::time_point deadline() const noexcept { return deadline_; }

  // Driver.
  void finish(Status outcome);
  [[nodiscard]] std::byte* at(const PlanSlice& slice) noexcept {
    return bases_[static_cast<std::size_t>(slice.buffer)] + slice.offset_bytes;
  }
  /// How many bytes of instruction `index` its dependencies allow to be done by now.
  [[nodiscard]] std::size_t allowed_bytes(std::uint32_t index) const noexcept;

  /// Makes it a send or recv, after reset().
  void set_message(const Message& what);
  [[nodiscard]] bool is_message() const noexcept { return is_message_; }
  std::atomic<int> source{-1};  ///< of a recv: the rank that sent the message

  Plan* plan;
  CallChain before;         ///< the calls before it, once it has been started
  CallSignature signature;  ///< this rank's signature of it, once it has been started
  Message message;
  std::vector<std::size_t> done_bytes;  ///< of each instruction
  std::vector<LinkProgress> links;      ///< parallel to plan->links
  std::size_t open_instructions = 0;    ///< not finished yet
  std::size_t open_links = 0;           ///< whose signatures have not been exchanged both ways
  std::size_t next_local_step = 0;
  Watch watch;             ///< once it has started
  bool on_links = false;   ///< runs over links, not over shared windows
  bool published = false;  ///< over windows: the peers can see this rank's part
  Operation* next_in_inbox = nullptr;
  std::atomic<bool> in_use{false};

 private:
  static constexpr std::uint32_t kRunning = 0;
  static constexpr std::uint32_t kDone = 1;
  enum CallbackState : int { kNoCallback, kCallbackSet, kFinished };

  static thread_local int callbacks_;  ///< of this thread, nested

  bool is_message_ = false;
  std::atomic<bool> in_group_{false};
  std::atomic<bool> awaited_{false};
  std::unique_ptr<Plan> owned_plan_;  // where the plan is not cached
  bool pooled_;
  std::atomic<int> references_{0};
  std::atomic<std::uint32_t> state_{kDone};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> callback_is_given_{false};  // the thread that sets it may write callback_
  std::atomic<int> callback_state_{kNoCallback};
  std::function<void(const Status&)> callback_;
  std::function<void()> last_step_;
  Status outcome_;
  std::uint64_t sequence_ = 0;
  std::chrono::steady_clock::time_point deadline_;
  std::chrono::steady_clock::time_point started_;  // only where the plan has a meter
  std::array<std::byte*, 3> bases_{};
  Scratch scratch_;  // while in flight
  std::shared_ptr<ProgressClient> client_;
};

}  // namespace shoal::internal
