#include "bench/train/data/augment.h"

namespace shoal::data {

Augmentation draw_augmentation(SplitMix random) {
  Augmentation drawn;
  drawn.shift_rows = static_cast<int>(random.below(2 * kPadPixels + 1)) - kPadPixels;
  drawn.shift_columns = static_cast<int>(random.below(2 * kPadPixels + 1)) - kPadPixels;
  drawn.mirror = random.below(2) == 1;
  return drawn;
}

void render(const Dataset& dataset, std::size_t index, const Augmentation& augmentation, float* output) {
  const std::uint8_t* image = dataset.pixels.data() + index * dataset.image_bytes();
  for (int channel = 0; channel < dataset.channels; ++channel) {
    const float mean = dataset.mean[static_cast<std::size_t>(channel)];
    const float deviation = dataset.deviation[static_cast<std::size_t>(channel)];
    for (int row = 0; row < dataset.height; ++row) {
      const int source_row = row + augmentation.shift_rows;
      const bool row_inside = source_row >= 0 && source_row < dataset.height;
      for (int column = 0; column < dataset.width; ++column) {
        const int seen = augmentation.mirror ? dataset.width - 1 - column : column;
        const int source_column = seen + augmentation.shift_columns;
        const bool inside = row_inside && source_column >= 0 && source_column < dataset.width;
        const int pixel = inside ? image[(channel * dataset.height + source_row) * dataset.width + source_column] : 0;
        *output++ = (static_cast<float>(pixel) / 255.0F - mean) / deviation;  // not times 1 / deviation: equals PyTorch's bits
      }
    }
  }
}

}  // namespace shoal::data
