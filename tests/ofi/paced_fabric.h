// Rails with rates that a test sets, by the test's clock.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "transports/rails/rail.h"

namespace shoal::rails::testing {

/// Returns no time until the ranks have connected: until then everything arrives at once.
using PacedClock = std::function<std::optional<std::chrono::steady_clock::time_point>()>;

/// Delays each rail's messages to its rate, one after the other, as a socket and its wire do: an operation completes for its
/// sender as soon as it is posted, and later posts wait behind it.
class PacedFabric final : public Fabric {
 public:
  /// A rate for each rail that `inner` opens.
  PacedFabric(std::shared_ptr<Fabric> inner, std::vector<double> bytes_per_us, PacedClock clock)
      : inner_(std::move(inner)), bytes_per_us_(std::move(bytes_per_us)), clock_(std::move(clock)) {}
  Result<std::vector<std::unique_ptr<Rail>>> open(const RailRequest& request) override;

 private:
  const std::shared_ptr<Fabric> inner_;
  const std::vector<double> bytes_per_us_;
  const PacedClock clock_;
};

}  // namespace shoal::rails::testing
