// Labelled images in memory, and reading files into them. Does not depend on torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <shoal/status.h>

namespace shoal::data {

/// Images of one shape with one label each. Pixels are bytes, image by image, channel by channel, row by row.
struct Dataset {
  std::string name;  ///< "cifar10", "fashion_mnist", "synthetic"
  int classes = 10;
  int channels = 0;
  int height = 0;
  int width = 0;
  std::vector<float> mean;       ///< per channel, of pixels scaled to 0..1
  std::vector<float> deviation;  ///< per channel
  std::vector<std::uint8_t> pixels;
  std::vector<std::uint8_t> labels;

  [[nodiscard]] std::size_t size() const { return labels.size(); }
  [[nodiscard]] std::size_t image_bytes() const { return static_cast<std::size_t>(channels) * height * width; }
};

/// Which half of a data set.
enum class Split { train, test };

/// The whole file, decompressed if it is in gzip format. Errors: not_found; system_error if it is not readable, truncated or
/// not gzip. `limit_bytes` bounds the decompressed size.
Result<std::string> read_file(const std::string& path, std::size_t limit_bytes);

}  // namespace shoal::data
