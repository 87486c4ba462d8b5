#include "bench/train/data/synthetic.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "bench/train/data/random.h"

namespace shoal::data {
namespace {

constexpr int kWaves = 3;
constexpr std::uint64_t kPatternSeed = 20101;  // the same patterns for training and test images

/// A class and channel: a sum of plane waves of few periods per image.
struct Pattern {
  std::array<float, kWaves> rows, columns, phase;
};

Pattern draw_pattern(int label, int channel) {
  SplitMix random(kPatternSeed, static_cast<std::uint64_t>(label), static_cast<std::uint64_t>(channel));
  Pattern pattern{};
  for (int wave = 0; wave < kWaves; ++wave) {
    pattern.rows[wave] = static_cast<float>(random.below(5)) - 2.0F;
    pattern.columns[wave] = static_cast<float>(random.below(5)) - 2.0F;
    pattern.phase[wave] = random.unit();
  }
  return pattern;
}

float value_at(const Pattern& pattern, float row, float column) {
  float sum = 0;
  for (int wave = 0; wave < kWaves; ++wave) {
    sum += std::sin(2 * std::numbers::pi_v<float> *
                    (pattern.rows[wave] * row + pattern.columns[wave] * column + pattern.phase[wave]));
  }
  return sum / kWaves;
}

}  // namespace

Dataset make_synthetic(std::size_t images, int channels, int side, std::uint64_t seed) {
  Dataset dataset{.name = "synthetic",
                  .classes = 10,
                  .channels = channels,
                  .height = side,
                  .width = side,
                  .mean = {},
                  .deviation = {},
                  .pixels = {},
                  .labels = {}};
  dataset.mean.assign(static_cast<std::size_t>(channels), 0.5F);
  dataset.deviation.assign(static_cast<std::size_t>(channels), 0.25F);
  dataset.pixels.reserve(images * dataset.image_bytes());
  std::vector<Pattern> patterns;
  for (int label = 0; label < dataset.classes; ++label) {
    for (int channel = 0; channel < channels; ++channel) patterns.push_back(draw_pattern(label, channel));
  }
  for (std::size_t image = 0; image < images; ++image) {
    SplitMix random(seed, 0, image);
    const auto label = static_cast<std::uint8_t>(image % 10);
    const float shift_rows = 0.25F * random.unit();
    const float shift_columns = 0.25F * random.unit();
    const float contrast = 0.5F + 0.5F * random.unit();
    dataset.labels.push_back(label);
    for (int channel = 0; channel < channels; ++channel) {
      const Pattern& pattern = patterns[static_cast<std::size_t>(label * channels + channel)];
      for (int row = 0; row < side; ++row) {
        for (int column = 0; column < side; ++column) {
          const float clean = value_at(pattern, static_cast<float>(row) / static_cast<float>(side) + shift_rows,
                                       static_cast<float>(column) / static_cast<float>(side) + shift_columns);
          const float noise = random.unit() - 0.5F;
          dataset.pixels.push_back(
              static_cast<std::uint8_t>(std::clamp(128.0F + 90.0F * contrast * clean + 60.0F * noise, 0.0F, 255.0F)));
        }
      }
    }
  }
  return dataset;
}

}  // namespace shoal::data
