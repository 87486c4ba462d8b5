#include "bench/train/data/official.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>

#include <openssl/evp.h>

namespace shoal::data {

namespace fs = std::filesystem;

std::span<const OfficialFile> official_fashion_mnist() {
  static constexpr std::array<OfficialFile, 4> kFiles{
      {{"train-images-idx3-ubyte.gz", 26'421'880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"},
       {"train-labels-idx1-ubyte.gz", 29'515, "25c81989df183df01b3e8a0aad5dffbe"},
       {"t10k-images-idx3-ubyte.gz", 4'422'102, "bef4ecab320f06d8554ea6380940ec79"},
       {"t10k-labels-idx1-ubyte.gz", 5'148, "bb300cfdad3c16e7a12a480ee83cd310"}}};
  return kFiles;
}

OfficialFile official_cifar10() { return {"cifar-10-binary.tar.gz", 170'052'171, "c32a1d4ab5d03f1284b67883e8d87530"}; }

Result<std::string> md5_of_file(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return errno == ENOENT ? Status(StatusCode::not_found, path + ": no such file") : system_error("open " + path, errno);
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> digest(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  bool good = digest && EVP_DigestInit_ex(digest.get(), EVP_md5(), nullptr) == 1;
  std::array<char, 64 * 1024> block;
  while (good && file) {
    file.read(block.data(), block.size());
    good = EVP_DigestUpdate(digest.get(), block.data(), static_cast<std::size_t>(file.gcount())) == 1;
  }
  if (file.bad()) return system_error("read " + path, errno);
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes;
  unsigned size = 0;
  good = good && EVP_DigestFinal_ex(digest.get(), bytes.data(), &size) == 1;
  if (!good) return Status(StatusCode::system_error, path + ": OpenSSL does not provide MD5 on this host");
  std::string text;
  for (unsigned i = 0; i < size; ++i) {
    std::array<char, 3> digits;
    (void)std::snprintf(digits.data(), digits.size(), "%02x", bytes[i]);
    text += digits.data();
  }
  return text;
}

Result<bool> holds_official(const std::string& folder, std::span<const OfficialFile> files) {
  bool all = true;
  for (const OfficialFile& file : files) {
    const fs::path path = fs::path(folder) / file.name;
    std::error_code failed;
    const std::uintmax_t bytes = fs::file_size(path, failed);
    if (failed || bytes != file.bytes) {
      all = false;
      continue;
    }
    const Result<std::string> md5 = md5_of_file(path.string());
    if (!md5.ok()) return md5.status();
    if (md5.value() != file.md5) {
      return Status(StatusCode::invalid_argument, path.string() + ": has the size of the official file, but its MD5 is " +
                                                      md5.value() + ", not " + file.md5 + "; the file is damaged");
    }
  }
  return all;
}

}  // namespace shoal::data
