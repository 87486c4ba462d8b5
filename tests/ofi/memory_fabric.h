// A perfect fabric of queues in memory: rails between ends of one process, so that a test decides everything else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "transports/rails/rail.h"

namespace shoal::rails::testing {

struct MemoryRailOptions {
  int rails = 1;
  bool writes = true;
  bool local_registration = false;  ///< and every post is checked to lie in registered memory
  bool writes_take_receives = false;
  std::size_t receives = 1024;  ///< that may be posted
};

class MemoryRail;

/// The wires. Thread rule: any thread; each rail from one at a time.
class MemoryNetwork {
 public:
  explicit MemoryNetwork(const MemoryRailOptions& options) : options_(options) {}
  [[nodiscard]] const MemoryRailOptions& options() const { return options_; }
  /// What was posted wrongly: memory that is not registered, a write out of bounds. Empty where nothing was.
  [[nodiscard]] std::string complaint();

 private:
  friend class MemoryRail;
  std::mutex mutex_;
  MemoryRailOptions options_;
  std::vector<MemoryRail*> rails_;  // by address; null once closed
  std::string complaint_;
};

/// Opens rails on a network; messages come in the order in which they were posted, and wait for a receive. A send completes at
/// once, a write when it is placed.
class MemoryFabric final : public Fabric {
 public:
  explicit MemoryFabric(std::shared_ptr<MemoryNetwork> network) : network_(std::move(network)) {}
  Result<std::vector<std::unique_ptr<Rail>>> open(const RailRequest& request) override;

 private:
  std::shared_ptr<MemoryNetwork> network_;
};

}  // namespace shoal::rails::testing
