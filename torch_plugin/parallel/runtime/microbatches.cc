#include "torch_plugin/parallel/runtime/microbatches.h"

#include <algorithm>

namespace shoal::parallel {

Microbatches::Microbatches(std::int64_t batch, int most) : batch_(batch) {
  const std::int64_t count = std::min<std::int64_t>(batch, most);
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    begins_.push_back(begin);
    sizes_.push_back(batch / count + (i < batch % count ? 1 : 0));
    begin += sizes_.back();
  }
}

}  // namespace shoal::parallel
