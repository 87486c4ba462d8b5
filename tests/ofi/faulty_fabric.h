// Faults between the ofi transport and any fabric: behaviour that EFA's documents permit and its users report, drawn from a
// seed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "transports/rails/rail.h"

namespace shoal::rails::testing {

/// A stream of pseudo-random numbers; the same seed gives the same numbers (splitmix64).
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t value = state_ += 0x9e3779b97f4a7c15;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    return value ^ (value >> 31);
  }
  std::uint64_t below(std::uint64_t limit) { return next() % limit; }
  bool chance(double probability) { return static_cast<double>(next() >> 11) * 0x1p-53 < probability; }

 private:
  std::uint64_t state_;
};

struct Faults {
  std::uint64_t seed = 1;
  /// Completions are held back and reordered, within and across peers and kinds: each read() returns a held one with this
  /// probability; 1 = at once and in order.
  double show = 1;
  /// Probability that a read() returns nothing, so that completions arrive in batches.
  double blank = 0;
  /// Probability that a post finds the queue full; the next `storm` posts then find it full as well.
  double again = 0;
  int storm = 0;
  std::size_t max_message_bytes = 0;  ///< 0: the limit of the inner fabric
  bool no_writes = false;             ///< a card without one-sided writes
  bool emulated_writes = false;       ///< a card without one-sided writes, where the provider offers emulated ones and reports
                                      ///< that
  /// Writes travel as segments of this size that arrive in any order; 0 = whole. Both ends must be in one process.
  std::size_t segment_bytes = 0;
  /// Probability that the segments of a write are written a second time before the write completes.
  double twice = 0;
  /// Probability that bits of a message, including its header, or of a written segment change in transit. Handshake records
  /// are excluded: they are authenticated and repeated.
  double flip = 0;
  int flipped_bits = 1;
  /// This rail fails after `dies_after` posts on it by rank `dying_rank`. From then on some of its operations fail, some
  /// vanish without a completion, and some arrive but are reported as failed. -1 = no rail fails.
  int dying_rail = -1;
  int dying_rank = 0;
  std::uint64_t dies_after = 0;
  double silent = 0.3;
  /// On the failed rail, every post is reported as sent, but nothing arrives.
  bool swallows = false;
};

/// State shared by the ends of one process.
class FaultState {
 public:
  explicit FaultState(const Faults& faults) : faults_(faults) {}
  /// No fault is injected before: the handshake runs undisturbed, so the same seed meets the same state.
  void start() { started_ = true; }
  [[nodiscard]] bool started() const { return started_; }
  [[nodiscard]] const Faults& faults() const { return faults_; }
  /// Number of faults injected so far (completions held back, posts refused, ...): a test checks that faults occurred.
  [[nodiscard]] std::uint64_t injected() const { return injected_; }
  /// Messages and segments in which bits were flipped.
  [[nodiscard]] std::uint64_t flips() const { return flips_; }
  /// Number of writes that were posted.
  [[nodiscard]] std::uint64_t writes() const { return posted_writes_; }
  /// Set where more operations were in flight on a rail than its completion queue has entries: a real card would lose
  /// completions, and the rail would fail. Empty where that has not happened.
  [[nodiscard]] std::string overrun();
  /// The highest number of operations in flight on a rail, and the number of entries of its queue.
  [[nodiscard]] std::pair<std::size_t, std::size_t> fullest();

 private:
  friend class FaultyRail;
  struct Write {
    std::uint32_t data = 0;
    std::size_t missing = 0;
  };
  const Faults faults_;
  std::atomic<bool> started_ = false;
  std::atomic<std::uint64_t> injected_ = 0;
  std::atomic<std::uint64_t> flips_ = 0;
  std::atomic<std::uint64_t> posted_writes_ = 0;
  std::mutex mutex_;
  std::map<std::string, std::size_t>
      written_to_;  // by address of a rail: writes that it has not reported, and that take no receive
  std::pair<std::size_t, std::size_t> fullest_{0, 1};
  std::string overrun_;
  std::uint32_t last_write_ = 0;
  std::map<std::uint32_t, Write> writes_;  // by the number that the segments carry
};

/// Injects faults into the rails that `inner` opens, and counts the operations in flight on each. One for each rank.
class FaultyFabric final : public Fabric {
 public:
  FaultyFabric(std::shared_ptr<Fabric> inner, std::shared_ptr<FaultState> state, int rank)
      : inner_(std::move(inner)), state_(std::move(state)), rank_(rank) {}
  Result<std::vector<std::unique_ptr<Rail>>> open(const RailRequest& request) override;

 private:
  const std::shared_ptr<Fabric> inner_;
  const std::shared_ptr<FaultState> state_;
  const int rank_;
};

}  // namespace shoal::rails::testing
