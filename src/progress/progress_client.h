// ProgressClient: what the ProgressEngine drives. Each communicator has one, its Executor.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <shoal/status.h>

#include "src/plan/operation.h"
#include "src/progress/group.h"
#include "src/progress/spill_queue.h"

namespace shoal {

struct Arrival;

/// The calls of one communicator, as the ProgressEngine sees them. `job_rank`: a rank of the job. Thread rule: the holder of
/// the DriverLock, but for number(), group(), close() and closed().
class ProgressClient {
 public:
  virtual ~ProgressClient() = default;
  ProgressClient(const ProgressClient&) = delete;
  ProgressClient& operator=(const ProgressClient&) = delete;

  [[nodiscard]] const Group& group() const noexcept { return group_; }
  /// The number that this process gives the communicator in its tiles.
  [[nodiscard]] std::uint32_t number() const noexcept { return number_; }
  /// close() has been called. Any thread.
  [[nodiscard]] bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }

  // Calls.
  /// Queues a call, which is started when its turn has come.
  virtual void enqueue(internal::Operation* operation) = 0;
  /// No call is in flight.
  [[nodiscard]] virtual bool idle() const noexcept = 0;
  /// Some call in flight uses links.
  [[nodiscard]] virtual bool on_links() const noexcept = 0;
  /// The first half of a pass: starts calls, sends; all of it where no call uses links.
  virtual bool start_and_send() = 0;
  /// The second half, where some call uses links: receives, folds, ends calls.
  virtual bool receive_and_end() = 0;
  /// The checks that need not run in every pass; may close.
  virtual bool check() = 0;
  [[nodiscard]] virtual std::chrono::steady_clock::time_point next_check() const noexcept = 0;

  // The end.
  /// Fails all calls in flight and all later calls with `cause`, and sends it to the peers. The first cause stays. Any thread.
  virtual void close(const Status& cause) = 0;
  /// After close(): sends the cause to the peers, once, and fails the calls in flight. True where anything changed.
  virtual bool end_if_closed() = 0;
  /// In a child of fork(): closes without a message to any peer. See ProgressEngine::leave_to_parent().
  virtual void leave_to_parent() = 0;

  // What peers report on the control plane.
  /// `job_rank` has closed this communicator; `its_calls` are its last calls.
  virtual void peer_left(int job_rank, std::span<const std::byte> its_calls) = 0;
  /// `job_rank` has left the job.
  virtual void peer_gone(int job_rank) = 0;
  /// For which ranks `job_rank` waits.
  virtual void peer_waits(int job_rank, std::span<const std::byte> what) = 0;
  /// `job_rank` found this rank in another call than its own, and sends the calls that it has made. Closes with the first call
  /// that differs, where there is one.
  virtual void peer_disagrees(int job_rank, std::span<const std::byte> its_calls) = 0;
  /// `job_rank` has died; closes, if it is a member.
  virtual void peer_died(int job_rank, const Status& how) = 0;

  // Tiles.
  /// A tile of a message has arrived from `job_rank`.
  virtual void take_message(int job_rank, const Arrival& arrival) = 0;
  /// `job_rank` uses `number` for this communicator in its own tiles.
  virtual void set_number_of(int job_rank, std::uint32_t number) = 0;
  /// That number; nothing where the rank is no member or has not sent one.
  [[nodiscard]] virtual std::optional<std::uint32_t> number_of(int job_rank) noexcept = 0;
  /// Whether number() has been sent to `job_rank`.
  [[nodiscard]] virtual bool has_bound(int job_rank) noexcept = 0;
  /// Tiles from `job_rank` may have been moved to `aside`; they come before those on the link.
  virtual void take_spilled(int job_rank, SpillQueue& aside) = 0;
  /// The cause to report where `job_rank` has aborted and a zero-copy tile of it is no longer intact.
  [[nodiscard]] virtual Status taken_back_by(int job_rank) = 0;
  /// `job_rank` has asked this rank to send no more tiles, or to continue.
  virtual void set_paused(int job_rank, bool paused) = 0;
  /// A call in flight waits for the link to `job_rank`, to send or to receive.
  [[nodiscard]] virtual bool uses(int job_rank) const noexcept = 0;
  /// A call in flight would send to `job_rank`, which has asked it to pause.
  [[nodiscard]] virtual bool is_paused(int job_rank) const noexcept = 0;

  bool running = false;  ///< set by the ProgressEngine: it is in the engine's list of clients with calls in flight

 protected:
  ProgressClient(const Group& group, std::uint32_t number) : group_(group), number_(number) {}

  Group group_;
  const std::uint32_t number_;
  std::atomic<bool> closed_{false};
};

}  // namespace shoal
