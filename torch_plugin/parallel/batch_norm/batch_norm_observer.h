// BatchNormObserver: sees what batch normalisations run on.
#pragma once

#include <cstdint>
#include <functional>

#include <torch/torch.h>

namespace shoal::parallel {

/// One call of aten::batch_norm that normalizes by its input (training). The tensors are those of the module, undefined where
/// it has none.
struct BatchNormCall {
  at::Tensor input;  ///< [images, channels, ...]
  at::Tensor weight;
  at::Tensor running_mean;
  at::Tensor running_var;

  /// Of each channel.
  [[nodiscard]] std::int64_t values() const { return input.numel() / input.size(1); }
};

/// While it exists, calls `observe` after each such call on this thread, whichever module makes it: torch's C++ modules have no
/// hooks. It looks at every operator that runs, about a microsecond each. `observe` must not throw. At most one on a thread.
/// Thread rule: the thread that made it.
class BatchNormObserver {
 public:
  using Observe = std::function<void(const BatchNormCall&)>;
  explicit BatchNormObserver(Observe observe);
  ~BatchNormObserver();
  BatchNormObserver(const BatchNormObserver&) = delete;
  BatchNormObserver& operator=(const BatchNormObserver&) = delete;

 private:
  const Observe observe_;
  std::uint64_t handle_;
};

}  // namespace shoal::parallel
