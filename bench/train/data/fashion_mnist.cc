#include "bench/train/data/fashion_mnist.h"

#include <algorithm>
#include <array>
#include <span>

#include <zlib.h>

namespace shoal::data {
namespace {

constexpr std::uint32_t kImageMagic = 0x803;  // unsigned bytes, three dimensions
constexpr std::uint32_t kLabelMagic = 0x801;  // unsigned bytes, one dimension
constexpr std::uint32_t kSide = 28;
constexpr std::uint32_t kMostImages = 1'000'000;

std::string stem(const std::string& folder, Split split) { return folder + (split == Split::train ? "/train" : "/t10k"); }

std::uint32_t big_endian(const std::string& bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = (value << 8) | static_cast<std::uint8_t>(bytes[at + i]);
  return value;
}

/// One IDX file: its dimensions, checked against the magic and the file's size, and its bytes.
struct Idx {
  std::string path;
  std::vector<std::uint32_t> dimensions;
  std::string bytes;  ///< header included
  [[nodiscard]] std::size_t header_bytes() const { return 4 + 4 * dimensions.size(); }
};

Result<Idx> read_idx(const std::string& plain_path, std::uint32_t magic) {
  constexpr std::size_t kLimitBytes = 16 + std::size_t{kMostImages} * kSide * kSide;
  Idx idx{.path = plain_path + ".gz", .dimensions = {}, .bytes = {}};
  Result<std::string> content = read_file(idx.path, kLimitBytes);
  if (content.status().code() == StatusCode::not_found) {
    idx.path = plain_path;
    content = read_file(idx.path, kLimitBytes);
    if (content.status().code() == StatusCode::not_found) {
      return Status(StatusCode::not_found, plain_path + ": no such file, with or without .gz");
    }
  }
  if (!content.ok()) return content.status();
  idx.bytes = std::move(content).value();
  const std::size_t dimensions = magic & 0xff;
  if (idx.bytes.size() < 4 + 4 * dimensions) {
    return Status(StatusCode::invalid_argument, idx.path + ": " + std::to_string(idx.bytes.size()) +
                                                    " bytes are less than an IDX header; the file is truncated");
  }
  if (const std::uint32_t found = big_endian(idx.bytes, 0); found != magic) {
    return Status(StatusCode::invalid_argument, idx.path + ": starts with " + std::to_string(found) +
                                                    ", not with the IDX magic number " + std::to_string(magic));
  }
  std::size_t expected = 1;
  for (std::size_t d = 0; d < dimensions; ++d) {
    idx.dimensions.push_back(big_endian(idx.bytes, 4 + 4 * d));
    if (idx.dimensions.back() == 0 || idx.dimensions.back() > kMostImages) {
      return Status(StatusCode::invalid_argument, idx.path + ": dimension " + std::to_string(d) + " is " +
                                                      std::to_string(idx.dimensions.back()) + "; the file is corrupt");
    }
    if (d > 0 && idx.dimensions.back() != kSide) {
      return Status(StatusCode::invalid_argument,
                    idx.path + ": images have a side of " + std::to_string(idx.dimensions.back()) + " pixels, not 28");
    }
    expected *= idx.dimensions.back();
  }
  if (idx.bytes.size() != idx.header_bytes() + expected) {
    return Status(StatusCode::invalid_argument,
                  idx.path + ": " + std::to_string(idx.bytes.size()) + " bytes, but its header requires " +
                      std::to_string(idx.header_bytes() + expected) + "; the file is truncated or corrupt");
  }
  return idx;
}

Status write_idx(const std::string& path, std::uint32_t magic, std::span<const std::uint32_t> dimensions,
                 const std::vector<std::uint8_t>& content) {
  std::string header;
  auto put = [&header](std::uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) header.push_back(static_cast<char>(value >> shift));
  };
  put(magic);
  std::ranges::for_each(dimensions, put);
  gzFile file = gzopen(path.c_str(), "wb1");
  if (file == nullptr) return system_error("open " + path, errno);
  const bool written = gzwrite(file, header.data(), static_cast<unsigned>(header.size())) == static_cast<int>(header.size()) &&
                       gzwrite(file, content.data(), static_cast<unsigned>(content.size())) == static_cast<int>(content.size());
  if (gzclose(file) != Z_OK || !written) return Status(StatusCode::system_error, path + ": could not be written");
  return {};
}

}  // namespace

Result<Dataset> read_fashion_mnist(const std::string& folder, Split split) {
  Result<Idx> images = read_idx(stem(folder, split) + "-images-idx3-ubyte", kImageMagic);
  if (!images.ok()) return images.status();
  Result<Idx> labels = read_idx(stem(folder, split) + "-labels-idx1-ubyte", kLabelMagic);
  if (!labels.ok()) return labels.status();
  if (images->dimensions[0] != labels->dimensions[0]) {
    return Status(StatusCode::invalid_argument, labels->path + ": " + std::to_string(labels->dimensions[0]) + " labels for " +
                                                    std::to_string(images->dimensions[0]) + " images");
  }
  Dataset dataset{.name = "fashion_mnist",
                  .classes = 10,
                  .channels = 1,
                  .height = kSide,
                  .width = kSide,
                  .mean = {0.2860F},
                  .deviation = {0.3530F},
                  .pixels = {},
                  .labels = {}};
  dataset.pixels.assign(images->bytes.begin() + static_cast<std::ptrdiff_t>(images->header_bytes()), images->bytes.end());
  dataset.labels.assign(labels->bytes.begin() + static_cast<std::ptrdiff_t>(labels->header_bytes()), labels->bytes.end());
  const auto wrong = std::ranges::find_if(dataset.labels, [&](std::uint8_t label) { return label >= dataset.classes; });
  if (wrong != dataset.labels.end()) {
    return Status(StatusCode::invalid_argument, labels->path + ": label " + std::to_string(wrong - dataset.labels.begin()) +
                                                    " is " + std::to_string(*wrong) + ", not 0 to 9; the file is corrupt");
  }
  return dataset;
}

Status write_fashion_mnist(const Dataset& dataset, const std::string& folder, Split split) {
  const auto images = static_cast<std::uint32_t>(dataset.size());
  const std::array<std::uint32_t, 3> shape{images, static_cast<std::uint32_t>(dataset.height),
                                           static_cast<std::uint32_t>(dataset.width)};
  Status status = write_idx(stem(folder, split) + "-images-idx3-ubyte.gz", kImageMagic, shape, dataset.pixels);
  if (status.ok())
    status = write_idx(stem(folder, split) + "-labels-idx1-ubyte.gz", kLabelMagic, std::span(shape).first(1), dataset.labels);
  return status;
}

}  // namespace shoal::data
