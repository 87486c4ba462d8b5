// Files as their authors published them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <shoal/status.h>

namespace shoal::data {

struct OfficialFile {
  const char* name;
  std::uintmax_t bytes;
  const char* md5;  ///< 32 hexadecimal digits, against damage, not against malice
};

/// Fashion-MNIST's four files: https://github.com/zalandoresearch/fashion-mnist, section "Get the Data".
std::span<const OfficialFile> official_fashion_mnist();
/// CIFAR-10's "binary version": https://www.cs.toronto.edu/~kriz/cifar.html.
OfficialFile official_cifar10();

/// The MD5 of a file's bytes (RFC 1321), as hexadecimal digits. Errors: not_found, system_error.
Result<std::string> md5_of_file(const std::string& path);

/// Whether `folder` holds exactly these files. A file that has another size, or is missing, is another data set in the same
/// layout. Errors: invalid_argument for one of the right size and other content: it is damaged; what md5_of_file says.
Result<bool> holds_official(const std::string& folder, std::span<const OfficialFile> files);

}  // namespace shoal::data
