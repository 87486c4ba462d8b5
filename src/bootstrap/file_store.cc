// A Store in a directory: each key is a file, written under another name and renamed, so that it appears whole.
#include <fcntl.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <fmt/format.h>
#include <shoal/store.h>

#include "src/bootstrap/socket.h"

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;

// Keys become file names: everything but letters, digits, '-' and '_' as %XX.
std::string file_name(std::string_view key) {
  std::string name = "key-";
  for (const char c : key) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_';
    name += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return name;
}

class FileStore final : public Store {
 public:
  FileStore(std::string directory, Descriptor watch) : directory_(std::move(directory)), watch_(std::move(watch)) {}

  Status set(std::string_view key, std::string_view value) override {
    const std::string path = directory_ + "/" + file_name(key);
    const std::string temporary = fmt::format("{}/tmp-{}-{}", directory_, ::getpid(), file_name(key));
    // For this user's eyes only: some values are secrets of the job. Never what lies there already, which others may have open
    // or which leads elsewhere; a process with this number that has ended may have left it.
    if (::unlink(temporary.c_str()) != 0 && errno != ENOENT)
      return system_error(fmt::format("file store: remove {}", temporary), errno);
    const Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
    if (file.get() < 0) return system_error(fmt::format("file store: create {}", temporary), errno);
    for (std::size_t written = 0; written < value.size();) {
      const ssize_t some = ::write(file.get(), value.data() + written, value.size() - written);
      if (some < 0 && errno != EINTR) return system_error(fmt::format("file store: write {}", temporary), errno);
      written += static_cast<std::size_t>(std::max<ssize_t>(some, 0));
    }
    if (std::rename(temporary.c_str(), path.c_str()) != 0)
      return system_error(fmt::format("file store: rename to {}", path), errno);
    return {};
  }

  Result<std::string> get(std::string_view key, Clock::time_point deadline) override {
    const std::string path = directory_ + "/" + file_name(key);
    for (;;) {
      if (std::ifstream file(path, std::ios::binary); file) {
        return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
      }
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
      if (left <= 0)
        return Status(StatusCode::timeout, fmt::format("file store {}: key '{}' did not come in time", directory_, key));
      // inotify says when a file appears; a network file system tells nothing of other hosts, hence the slices.
      pollfd descriptor{watch_.get(), POLLIN, 0};
      if (::poll(&descriptor, 1, static_cast<int>(std::min<long long>(left, 200))) > 0) {
        char events[4096];
        while (::read(watch_.get(), events, sizeof events) > 0) {
        }
      }
    }
  }

 private:
  std::string directory_;
  Descriptor watch_;
};

// Makes `directory` where it is missing. Who else may write there could read what is put there, or put his own in its place.
Status own_directory(const std::string& directory) {
  std::error_code error;
  std::filesystem::path path(directory);
  if (!path.has_filename()) path = path.parent_path();  // "folder/"
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  if (error) return {StatusCode::system_error, fmt::format("file store: create {}: {}", directory, error.message())};
  if (::mkdir(path.c_str(), S_IRWXU) != 0 && errno != EEXIST)
    return system_error(fmt::format("file store: create {}", directory), errno);
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) return system_error(fmt::format("file store: look at {}", directory), errno);
  const auto bad = [&](const std::string& why) {
    return Status(StatusCode::invalid_argument, fmt::format("file store: {} {}", directory, why));
  };
  if (!S_ISDIR(found.st_mode)) return bad("is no folder; name one, or one that does not exist yet");
  if (found.st_uid != ::geteuid())
    return bad(fmt::format("belongs to another user (number {}); name a folder of your own, or one that does not exist yet",
                           found.st_uid));
  if ((found.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return bad(fmt::format("may be written to by other users (mode {:03o}); chmod go-w it, or name one that does not exist yet",
                           found.st_mode & 0777U));
  return {};
}

}  // namespace

Result<std::unique_ptr<Store>> make_file_store(const std::string& directory) {
  if (Status status = own_directory(directory); !status.ok()) return status;
  Descriptor watch(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  if (watch.get() < 0 || ::inotify_add_watch(watch.get(), directory.c_str(), IN_MOVED_TO) < 0) {
    return system_error(fmt::format("file store: watch {}", directory), errno);
  }
  return std::unique_ptr<Store>(std::make_unique<FileStore>(directory, std::move(watch)));
}

}  // namespace shoal
