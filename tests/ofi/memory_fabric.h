// A fabric of queues in memory without faults: rails between ends of one process, so that a test controls everything else.
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
  bool local_registration = false;  ///< memory must be registered, and each post is checked for it
  bool writes_take_receives = false;
  std::size_t receives = 1024;  ///< receives that may be posted
};

class MemoryRail;

/// The queues. Thread rule: any thread; each rail from one thread at a time.
class MemoryNetwork {
 public:
  explicit MemoryNetwork(const MemoryRailOptions& options) : options_(options) {}
  [[nodiscard]] const MemoryRailOptions& options() const { return options_; }
  /// The first wrong post: memory that is not registered, a write out of bounds. Empty where there was none.
  [[nodiscard]] std::string complaint();

 private:
  friend class MemoryRail;
  std::mutex mutex_;
  MemoryRailOptions options_;
  std::vector<MemoryRail*> rails_;  // by address; null once closed
  std::string complaint_;
};

/// Opens rails on a network. Messages arrive in the order of posting, and wait for a posted receive. A send completes at
/// once, a write when its bytes are placed.
class MemoryFabric final : public Fabric {
 public:
  explicit MemoryFabric(std::shared_ptr<MemoryNetwork> network) : network_(std::move(network)) {}
  Result<std::vector<std::unique_ptr<Rail>>> open(const RailRequest& request) override;

 private:
  std::shared_ptr<MemoryNetwork> network_;
};

}  // namespace shoal::rails::testing
