// Converts a stored image to the network's input.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bench/train/data/dataset.h"
#include "bench/train/data/random.h"

namespace shoal::data {

/// The position at which an augmented image is cut out of the padded one, and whether it is mirrored.
struct Augmentation {
  int shift_rows = 0;     ///< -kPadPixels..kPadPixels
  int shift_columns = 0;  ///< -kPadPixels..kPadPixels
  bool mirror = false;
};
inline constexpr int kPadPixels = 4;

/// The usual augmentation of small images: pad by 4 with black, cut out the original size at a random position, mirror half
/// of them. Source: Lee et al., "Deeply-Supervised Nets", AISTATS 2015, section 4.2.
Augmentation draw_augmentation(SplitMix random);

/// Writes image `index` as floats, (pixel / 255 - mean) / deviation per channel, to output[0 .. image_bytes).
void render(const Dataset& dataset, std::size_t index, const Augmentation& augmentation, float* output);

}  // namespace shoal::data
