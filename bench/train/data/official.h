// The data files as published by their authors.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <shoal/status.h>

namespace shoal::data {

struct OfficialFile {
  const char* name;
  std::uintmax_t bytes;
  const char* md5;  ///< 32 hexadecimal digits; detects damage, not manipulation
};

/// Fashion-MNIST's four files: https://github.com/zalandoresearch/fashion-mnist, section "Get the Data".
std::span<const OfficialFile> official_fashion_mnist();
/// CIFAR-10's "binary version": https://www.cs.toronto.edu/~kriz/cifar.html.
OfficialFile official_cifar10();

/// The MD5 of a file's bytes (RFC 1321), as hexadecimal digits. Errors: not_found, system_error.
Result<std::string> md5_of_file(const std::string& path);

/// Whether `folder` holds exactly these files. If a file is missing or has another size, it is another data set in the same
/// format. Errors: invalid_argument for a file of the right size with other content, which is damaged; those of md5_of_file.
Result<bool> holds_official(const std::string& folder, std::span<const OfficialFile> files);

}  // namespace shoal::data
