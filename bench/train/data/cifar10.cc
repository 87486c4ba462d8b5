#include "bench/train/data/cifar10.h"

#include <cerrno>
#include <fstream>

namespace shoal::data {
namespace {

constexpr std::size_t kPixelBytes = 3 * 32 * 32;
constexpr std::size_t kRecordBytes = 1 + kPixelBytes;
constexpr std::size_t kLimitBytes = 50'000 * kRecordBytes;  // the size of the whole official set, for one file
constexpr int kTrainFiles = 5;

Status append(const std::string& path, Dataset& dataset) {
  const Result<std::string> content = read_file(path, kLimitBytes);
  if (!content.ok()) return content.status();
  const std::string& bytes = content.value();
  if (bytes.empty() || bytes.size() % kRecordBytes != 0) {
    return Status(StatusCode::invalid_argument,
                  path + ": " + std::to_string(bytes.size()) + " bytes are not a whole number of CIFAR-10 records of " +
                      std::to_string(kRecordBytes) + " bytes; the file is truncated or not the binary version");
  }
  for (std::size_t at = 0; at < bytes.size(); at += kRecordBytes) {
    const auto label = static_cast<std::uint8_t>(bytes[at]);
    if (label >= dataset.classes) {
      return Status(StatusCode::invalid_argument, path + ": byte " + std::to_string(at) +
                                                      " should be a label of 0 to 9 but is " + std::to_string(label) +
                                                      "; the file is corrupt");
    }
    dataset.labels.push_back(label);
    dataset.pixels.insert(dataset.pixels.end(), bytes.begin() + static_cast<std::ptrdiff_t>(at + 1),
                          bytes.begin() + static_cast<std::ptrdiff_t>(at + kRecordBytes));
  }
  return {};
}

}  // namespace

Result<Dataset> read_cifar10(const std::string& folder, Split split) {
  Dataset dataset{.name = "cifar10",
                  .classes = 10,
                  .channels = 3,
                  .height = 32,
                  .width = 32,
                  .mean = {0.4914F, 0.4822F, 0.4465F},
                  .deviation = {0.2470F, 0.2435F, 0.2616F},
                  .pixels = {},
                  .labels = {}};
  if (split == Split::test) {
    if (const Status status = append(folder + "/test_batch.bin", dataset); !status.ok()) return status;
    return dataset;
  }
  for (int file = 1; file <= kTrainFiles; ++file) {
    const Status status = append(folder + "/data_batch_" + std::to_string(file) + ".bin", dataset);
    if (file > 1 && status.code() == StatusCode::not_found) break;  // a subset has fewer files
    if (!status.ok()) return status;
  }
  return dataset;
}

Status write_cifar10(const Dataset& dataset, const std::string& path) {
  if (dataset.image_bytes() != kPixelBytes)
    return Status(StatusCode::invalid_argument, path + ": CIFAR-10 images are 3 x 32 x 32");
  std::ofstream file(path, std::ios::binary);
  for (std::size_t image = 0; image < dataset.size(); ++image) {
    file.put(static_cast<char>(dataset.labels[image]));
    file.write(reinterpret_cast<const char*>(dataset.pixels.data() + image * kPixelBytes), kPixelBytes);
  }
  file.close();
  return file ? Status() : system_error("write " + path, errno);
}

}  // namespace shoal::data
