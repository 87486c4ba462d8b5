// Files of data sets. The first byte of the input selects the file; the rest is its content.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "bench/train/data/cifar10.h"
#include "bench/train/data/fashion_mnist.h"

using namespace shoal::data;  // NOLINT(google-build-using-namespace): the whole file is one function

namespace {

/// A temporary folder, in memory if possible.
class Folder {
 public:
  Folder() {
    const char* base = std::filesystem::exists("/dev/shm") ? "/dev/shm" : "/tmp";
    std::string pattern = std::string(base) + "/shoal-fuzz-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

void check(const shoal::Result<Dataset>& read) {
  if (!read.ok()) return;
  if (read->pixels.size() != read->size() * read->image_bytes()) std::abort();
  for (const std::uint8_t label : read->labels) {
    if (label >= read->classes) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  if (size == 0) return 0;
  static constexpr const char* kNames[] = {"test_batch.bin", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte",
                                           "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"};
  const std::string path = folder.path() + "/" + kNames[data[0] % std::size(kNames)];
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(data) + 1, static_cast<std::streamsize>(size - 1));
  check(read_cifar10(folder.path(), Split::test));
  check(read_fashion_mnist(folder.path(), Split::test));
  if (data[0] >= 128) std::filesystem::remove(path);  // else it stays for the next input, together with another file
  return 0;
}
