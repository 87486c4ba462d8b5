#include "torch_plugin/parallel/batch_norm/channel_moments.h"

namespace shoal::parallel {

void ChannelMoments::add(const ChannelMoments& other) {
  if (other.count == 0) return;
  if (count == 0) {
    *this = other;
    return;
  }
  const at::NoGradGuard no_grad;
  const auto all = static_cast<double>(count + other.count);
  const auto share = static_cast<double>(other.count) / all;
  const at::Tensor distance = other.mean - mean;
  mean = mean + distance * share;
  squares = squares + other.squares + distance.square() * (static_cast<double>(count) * share);
  count += other.count;
}

}  // namespace shoal::parallel
