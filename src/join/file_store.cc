// A Store in a directory. Each key is a file, written under another name and renamed, so that it appears as a whole. A rank
// that has entered holds a lock on a file; the kernel releases the lock when the process ends.
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include <fmt/format.h>
#include <shoal/store.h>

#include "src/base/printable.h"
#include "src/join/socket.h"
#include "src/join/startup_exchange.h"

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
    const std::string name = file_name(key);
    const auto file = create(name);
    if (!file.ok()) return file.status();
    if (Status status = write_all(*file, value, name); !status.ok()) return status;
    return show(name);
  }

  Result<std::string> get(std::string_view key, Clock::time_point deadline) override {
    return wait_for(key, nullptr, deadline);
  }

  Result<std::string> get_from(int rank, std::string_view key, Clock::time_point deadline) override {
    return wait_for(key, &rank, deadline);
  }

  Status enter(int rank, int size) override {
    leave();
    const std::string name = presence_of(rank);
    auto file = create(name);
    if (!file.ok()) return file.status();
    // Locked before other ranks see the file. With a file system without locks, deaths are not detected.
    if (::flock(file->get(), LOCK_EX | LOCK_NB) != 0) {
      ::unlink(temporary(name).c_str());
      return {};
    }
    const std::string process = process_name();
    if (Status status = write_all(*file, process, name); !status.ok()) return status;
    if (is_held(rank)) {
      ::unlink(temporary(name).c_str());
      return conflict(given_twice(rank, text_of(directory_ + "/" + name).value_or("another process"), process));
    }
    if (Status status = show(name); !status.ok()) return status;
    presence_ = std::move(file).value();
    entered_as_ = directory_ + "/" + name;
    left_as_ = path_of_left(rank);
    return agree_on_size(rank, size, process);
  }

  Status look(Clock::time_point /*deadline*/) override {
    if (Status bad = in_conflict(); !bad.ok()) return bad;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(directory_, error)) {
      const std::string name = entry.path().filename();
      int rank = 0;
      if (name.starts_with(kPresence) &&
          std::from_chars(name.data() + kPresence.size(), name.data() + name.size(), rank).ec == std::errc() && has_died(rank))
        return death_of(rank);
    }
    return given_up();
  }

  [[nodiscard]] std::vector<int> absent(int size) const override {
    std::vector<int> ranks;
    for (int rank = 0; rank < size; ++rank) {
      const std::string present = directory_ + "/" + presence_of(rank);
      if (::access(present.c_str(), F_OK) != 0 && ::access(path_of_left(rank).c_str(), F_OK) != 0) ranks.push_back(rank);
    }
    return ranks;
  }

  void leave() override {
    if (!presence_.valid()) return;
    // Before the lock is released: a rank that finds the lock free checks whether the file is still there.
    if (std::rename(entered_as_.c_str(), left_as_.c_str()) != 0) ::unlink(entered_as_.c_str());
    presence_.reset();
  }

 private:
  static constexpr std::string_view kPresence = "rank-";
  static constexpr std::string_view kSize = "size of the job";
  static constexpr std::string_view kConflict = "ranks that cannot be of one job";
  [[nodiscard]] std::string path_of_left(int rank) const { return fmt::format("{}/left-{}", directory_, rank); }
  static std::string presence_of(int rank) { return fmt::format("{}{}", kPresence, rank); }
  [[nodiscard]] Status death_of(int rank) const {
    return {StatusCode::peer_failed, fmt::format("rank {} died (file store {})", rank, directory_)};
  }
  [[nodiscard]] Status write_all(const Descriptor& file, std::string_view value, const std::string& name) const {
    for (std::size_t written = 0; written < value.size();) {
      const ssize_t some = ::write(file.get(), value.data() + written, value.size() - written);
      if (some < 0 && errno != EINTR) return system_error(fmt::format("file store: write {}", temporary(name)), errno);
      written += static_cast<std::size_t>(std::max<ssize_t>(some, 0));
    }
    return {};
  }
  // The first rank writes its size, and all other ranks compare theirs.
  [[nodiscard]] Status agree_on_size(int rank, int size, const std::string& process) {
    const std::string name = file_name(kSize);
    const auto file = create(name);
    if (!file.ok()) return file.status();
    if (Status status = write_all(*file, fmt::format("{} {} {}", size, rank, process), name); !status.ok()) return status;
    const std::string path = directory_ + "/" + name;
    const bool first = ::link(temporary(name).c_str(), path.c_str()) == 0;  // unlike rename(), link() never replaces a file
    ::unlink(temporary(name).c_str());
    const auto found = first ? std::nullopt : text_of(path);
    if (!found) return {};
    int other_size = size;
    int other_rank = 0;
    const char* const end = found->data() + found->size();
    const char* next = std::from_chars(found->data(), end, other_size).ptr;
    if (next != end) next = std::from_chars(next + 1, end, other_rank).ptr;
    if (next == end || other_size == size) return {};
    return conflict(sizes_differ({other_rank, other_size, std::string_view(next + 1, static_cast<std::size_t>(end - next - 1))},
                                 {rank, size, process}));
  }
  // Returns the conflict, and publishes it for all ranks that have entered.
  [[nodiscard]] Status conflict(const std::string& why) {
    static_cast<void>(set(kConflict, why));
    return {StatusCode::mismatch, why};
  }
  // ok if there is no conflict, or if this process has not entered.
  [[nodiscard]] Status in_conflict() const {
    auto why = presence_.valid() ? read(kConflict) : std::nullopt;
    return why ? Status(StatusCode::mismatch, printable(*std::move(why))) : Status();
  }
  // ok if no rank has aborted, or if this process has not entered.
  [[nodiscard]] Status given_up() const {
    auto why = presence_.valid() ? read(kGivenUp) : std::nullopt;
    return why ? Status(StatusCode::aborted, std::move(*why)) : Status();
  }
  [[nodiscard]] std::optional<std::string> read(std::string_view key) const {
    return text_of(directory_ + "/" + file_name(key));
  }
  [[nodiscard]] static std::optional<std::string> text_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return std::nullopt;
    return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  [[nodiscard]] std::string temporary(const std::string& name) const {
    return fmt::format("{}/tmp-{}-{}", directory_, ::gettid(), name);  // ranks may be threads of one process
  }

  // Creates a file that no other rank sees until show(). Only this user may read it, because some values are secrets of the
  // job. A file that exists already is removed, never reused: another process may have it open, or it may be a link. It may
  // come from an earlier thread with the same id.
  [[nodiscard]] Result<Descriptor> create(const std::string& name) const {
    const std::string path = temporary(name);
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) return system_error(fmt::format("file store: remove {}", path), errno);
    Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
    if (file.get() < 0) return system_error(fmt::format("file store: create {}", path), errno);
    return file;
  }

  [[nodiscard]] Status show(const std::string& name) const {
    const std::string path = directory_ + "/" + name;
    if (std::rename(temporary(name).c_str(), path.c_str()) == 0) return {};
    return system_error(fmt::format("file store: rename to {}", path), errno);
  }

  // Whether another process has entered as `rank` and lives.
  [[nodiscard]] bool is_held(int rank) const {
    const Descriptor file(::open((directory_ + "/" + presence_of(rank)).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    return file.valid() && ::flock(file.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  }
  // Whether `rank` has entered and its process has ended: its lock is free, and its file has not been moved.
  [[nodiscard]] bool has_died(int rank) const {
    const std::string path = directory_ + "/" + presence_of(rank);
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    if (!file.valid() || ::flock(file.get(), LOCK_SH | LOCK_NB) != 0) return false;
    struct stat locked {};
    struct stat there {};
    return ::fstat(file.get(), &locked) == 0 && ::lstat(path.c_str(), &there) == 0 && locked.st_ino == there.st_ino;
  }

  // `rank`: the rank that sets the key, or null.
  Result<std::string> wait_for(std::string_view key, const int* rank, Clock::time_point deadline) {
    for (;;) {
      const bool died = rank != nullptr && has_died(*rank);  // checked before the key, which the rank may have set last
      if (Status bad = rank != nullptr ? in_conflict() : Status(); !bad.ok()) return bad;
      if (auto value = read(key)) return std::move(*value);
      if (died) return death_of(*rank);
      if (Status over = rank != nullptr ? given_up() : Status(); !over.ok()) return over;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
      if (left <= 0)
        return Status(StatusCode::timeout, fmt::format("file store {}: key '{}' was not set in time", directory_, key));
      // inotify reports when a file appears, or when the file of a dead rank is closed. A network file system reports nothing
      // about other hosts, hence the time slices.
      pollfd descriptor{watch_.get(), POLLIN, 0};
      if (::poll(&descriptor, 1, static_cast<int>(std::min<long long>(left, 200))) > 0) {
        char events[4096];
        while (::read(watch_.get(), events, sizeof events) > 0) {
        }
      }
    }
  }

  std::string directory_;
  Descriptor watch_;
  Descriptor presence_;     // the locked file, while this process has entered
  std::string entered_as_;  // its path
  std::string left_as_;     // its path after leave()
};

// Creates `directory` if it does not exist. Refuses one that other users may write to: they could read or replace its files.
Status own_directory(const std::string& directory) {
  std::error_code error;
  std::filesystem::path path(directory);
  if (!path.has_filename()) path = path.parent_path();  // "folder/"
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  if (error) return {StatusCode::system_error, fmt::format("file store: create {}: {}", directory, error.message())};
  if (::mkdir(path.c_str(), S_IRWXU) != 0 && errno != EEXIST)
    return system_error(fmt::format("file store: create {}", directory), errno);
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) return system_error(fmt::format("file store: inspect {}", directory), errno);
  const auto bad = [&](const std::string& why) {
    return Status(StatusCode::invalid_argument, fmt::format("file store: {} {}", directory, why));
  };
  if (!S_ISDIR(found.st_mode)) return bad("is not a folder; name a folder, or one that does not exist yet");
  if (found.st_uid != ::geteuid())
    return bad(fmt::format("belongs to another user (uid {}); name a folder of your own, or one that does not exist yet",
                           found.st_uid));
  if ((found.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return bad(fmt::format("is writable by other users (mode {:03o}); run chmod go-w, or name a folder that does not exist yet",
                           found.st_mode & 0777U));
  return {};
}

}  // namespace

Result<std::unique_ptr<Store>> make_file_store(const std::string& directory) {
  if (Status status = own_directory(directory); !status.ok()) return status;
  Descriptor watch(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  if (watch.get() < 0 || ::inotify_add_watch(watch.get(), directory.c_str(), IN_MOVED_TO | IN_CLOSE_WRITE) < 0) {
    return system_error(fmt::format("file store: watch {}", directory), errno);
  }
  return std::unique_ptr<Store>(std::make_unique<FileStore>(directory, std::move(watch)));
}

}  // namespace shoal
