#include "src/join/job_key.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <mutex>

#include <fmt/format.h>

#include "src/join/socket.h"
#include "src/settings/settings.h"

namespace shoal {
namespace {

constexpr std::size_t kLongestKey = 4096;

Status bad(const std::string& what) { return {StatusCode::invalid_argument, what}; }

Result<std::string> read_key_file(const std::string& path) {
  const auto name = [&] { return fmt::format("SHOAL_JOB_KEY_FILE: {}", path); };
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe without a writer must not block
  struct stat about {};
  if (file.get() < 0 || ::fstat(file.get(), &about) != 0) return system_error(name(), errno);
  if (!S_ISREG(about.st_mode)) return bad(name() + " is not a regular file");
  if ((about.st_mode & S_IRWXO) != 0)
    return bad(
        fmt::format("{} is open to all users of this host (mode {:03o}); run chmod o-rwx", name(), about.st_mode & 0777U));
  std::array<char, kLongestKey + 2> text;
  const ssize_t got = ::read(file.get(), text.data(), text.size());
  if (got < 0) return system_error(name(), errno);
  std::string key(text.data(), static_cast<std::size_t>(got));
  while (!key.empty() && (key.back() == '\n' || key.back() == '\r')) key.pop_back();
  return key;
}

struct LauncherKey {
  std::mutex mutex;
  std::optional<JobKey> key;
};
LauncherKey& launcher_key() {
  static LauncherKey one;
  return one;
}

}  // namespace

Result<std::optional<std::string>> job_key_text() {
  std::string text = setting("SHOAL_JOB_KEY");
  std::string source = "SHOAL_JOB_KEY";
  if (const std::string path = setting("SHOAL_JOB_KEY_FILE"); !path.empty()) {
    if (!text.empty()) return bad("SHOAL_JOB_KEY and SHOAL_JOB_KEY_FILE are both set; unset one of them");
    auto read = read_key_file(path);
    if (!read.ok()) return read.status();
    text = std::move(read).value();
    source += "_FILE";
  } else if (text.empty()) {
    return std::optional<std::string>();
  }
  if (text.size() < kShortestKey || text.size() > kLongestKey) {
    return bad(fmt::format("{} has a key of {} characters; {} to {} are allowed (create one with openssl rand -hex 32)", source,
                           text.size(), kShortestKey, kLongestKey));
  }
  return std::optional<std::string>(std::move(text));
}

Result<JobKey> given_job_key() {
  const auto text = job_key_text();
  if (!text.ok()) return text.status();
  return JobKey{key_from_text(text->value_or("")), text->has_value()};
}

Result<JobKey> job_key() {
  auto given = given_job_key();
  if (!given.ok() || given->secret) return given;
  const std::scoped_lock lock(launcher_key().mutex);
  return launcher_key().key.value_or(*given);
}

void remember_job_key(const JobKey& key) {
  const std::scoped_lock lock(launcher_key().mutex);
  launcher_key().key = key;
}

}  // namespace shoal
