// ChannelMoments: mean and variance of the values of each channel, added up exactly enough.
#pragma once

#include <cstdint>

#include <torch/torch.h>

namespace shoal::parallel {

/// Of the values of each channel, in double. Sums of squares of the values themselves would lose the variance of a channel
/// whose mean is large.
struct ChannelMoments {
  std::int64_t count = 0;
  at::Tensor mean;     ///< [channels]; undefined while count is 0
  at::Tensor squares;  ///< [channels]: sum of the squared differences from the mean

  /// The moments of both together. Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing
  /// sample variances", 1979.
  void add(const ChannelMoments& other);
  /// With the divisor count - 1. Precondition: count is at least 2.
  [[nodiscard]] at::Tensor unbiased_variance() const { return squares / static_cast<double>(count - 1); }
};

}  // namespace shoal::parallel
