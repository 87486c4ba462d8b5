#include "torch_plugin/parallel/checkpoint/file_bytes.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

namespace shoal::parallel {
namespace {

constexpr std::uintmax_t kLargestFileBytes = std::uintmax_t{64} << 30;
constexpr mode_t kFileMode = 0666;  // less the umask

Status write_and_sync(int file, std::span<const char> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return system_error("write " + path, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return ::fsync(file) == 0 ? Status() : system_error("write " + path, errno);
}

/// A rename is on the disk when its folder is. Some file systems cannot sync folders.
Status sync_folder_of(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const int folder = ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return system_error("open the folder of " + path, errno);
  const int error = ::fsync(folder) == 0 || errno == EINVAL ? 0 : errno;
  ::close(folder);
  return error == 0 ? Status() : system_error("write the folder of " + path, error);
}

}  // namespace

Result<std::vector<char>> read_file(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_type kind = std::filesystem::status(path, error).type();
  if (kind == std::filesystem::file_type::not_found) return Status(StatusCode::not_found, path + ": no such file");
  if (error) return system_error("open " + path, error.value());
  if (kind != std::filesystem::file_type::regular) return Status(StatusCode::invalid_argument, path + ": is not a file");
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return system_error("read " + path, error.value());
  if (size == 0 || size > kLargestFileBytes) {
    return Status(StatusCode::invalid_argument, path + ": is not a checkpoint: " + std::to_string(size) + " bytes");
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return system_error("open " + path, errno);
  std::vector<char> bytes(size);
  if (!file.read(bytes.data(), static_cast<std::streamsize>(size))) return system_error("read " + path, errno);
  return bytes;
}

Status replace_file(const std::string& path, std::span<const char> bytes) {
  std::random_device random;
  const std::string draft = path + ".unfinished-" + std::to_string(random());  // no other process writes this one
  const int file = ::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kFileMode);
  if (file < 0) return system_error("write " + draft, errno);
  Status status = write_and_sync(file, bytes, draft);
  if (::close(file) != 0 && status.ok()) status = system_error("write " + draft, errno);
  if (status.ok() && std::rename(draft.c_str(), path.c_str()) != 0) status = system_error("write " + path, errno);
  if (status.ok()) return sync_folder_of(path);
  ::unlink(draft.c_str());
  return status;
}

}  // namespace shoal::parallel
