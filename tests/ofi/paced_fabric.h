// Rails that are as fast as a test says, by the test's clock.
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

/// Empty until the ranks have met: so long everything arrives at once.
using PacedClock = std::function<std::optional<std::chrono::steady_clock::time_point>()>;

/// Lets what each rail sends arrive at its rate, one after the other, as a socket and its wire do: an operation is over for its
/// sender as soon as it is posted, and what is posted later waits behind it.
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
