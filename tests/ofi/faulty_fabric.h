// Faults between the ofi transport and any fabric: what EFA's documents promise and its users report, drawn from a seed.
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

/// A stream of numbers that look random; the same seed gives the same ones (splitmix64).
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
  /// Completions are held back and come in another order, within and across peers and kinds: each look shows one that is held
  /// with this chance; 1 = at once and in order.
  double show = 1;
  /// Chance that a look shows nothing at all, so that what is over comes in batches.
  double blank = 0;
  /// Chance that a post meets a full queue; the next `storm` posts then do as well.
  double again = 0;
  int storm = 0;
  std::size_t max_message_bytes = 0;  ///< 0: as the fabric has it
  bool no_writes = false;             ///< cards without one-sided writes
  bool emulated_writes = false;       ///< the same, where the provider has them all the same, and says so
  /// Writes travel as segments of this size that are placed in any order; 0 = whole. Both ends in one process.
  std::size_t segment_bytes = 0;
  /// Chance that the segments of a write are placed once more before it completes.
  double twice = 0;
  /// Chance that bits of a message, its front included, or of a written segment change on the way. Not of the records by which
  /// ranks meet: these are proven, and said again.
  double flip = 0;
  int flipped_bits = 1;
  /// This rail dies when so many operations were posted on it by one end: afterwards some of its operations fail, some vanish
  /// without a word, and some arrive and are reported as failed all the same. -1 = none does.
  int dying_rail = -1;
  int dying_rank = 0;
  std::uint64_t dies_after = 0;
  double silent = 0.3;
  /// All that is posted on it then is reported as sent, and nothing arrives.
  bool swallows = false;
};

/// What the ends of one process share.
class FaultState {
 public:
  explicit FaultState(const Faults& faults) : faults_(faults) {}
  /// Until then nothing happens: the ranks meet undisturbed, and the same seed finds the same state.
  void start() { started_ = true; }
  [[nodiscard]] bool started() const { return started_; }
  [[nodiscard]] const Faults& faults() const { return faults_; }
  /// Held back, refused, segments, and so on, all together: a test sees that something happened.
  [[nodiscard]] std::uint64_t injected() const { return injected_; }
  /// Messages and segments of which bits changed on the way.
  [[nodiscard]] std::uint64_t flips() const { return flips_; }
  /// Writes that were posted.
  [[nodiscard]] std::uint64_t writes() const { return posted_writes_; }
  /// More was under way on a rail than its completion queue has room for: a card would lose completions, and end the rail.
  /// Empty where that has not happened.
  [[nodiscard]] std::string overrun();
  /// The most that was under way on a rail at a time, and the room that its queue had.
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
      written_to_;  // writes of which the rail with that address has not told, nor taken a receive
  std::pair<std::size_t, std::size_t> fullest_{0, 1};
  std::string overrun_;
  std::uint32_t last_write_ = 0;
  std::map<std::uint32_t, Write> writes_;  // by the number that their segments carry
};

/// Puts faults in front of the rails that `inner` opens, and counts what is under way on each. One for each rank.
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
