#include "tests/fault/sandbox.h"

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

#include <fmt/format.h>

namespace shoal::testing {
namespace {

constexpr int kNamespaces = CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWIPC;
// The sandbox's own files, in its new /tmp.
constexpr const char* kBelow = "/tmp/.sandbox";
constexpr const char* kOutside = "/tmp/.sandbox/outside";
constexpr const char* kQueues = "/tmp/.sandbox/queues";

void write_text(const char* path, const std::string& text) { std::ofstream(path) << text; }

/// The error; empty on success.
std::string bring_loopback_up() {
  const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  std::string_view("lo").copy(request.ifr_name, sizeof request.ifr_name);
  const bool up = ::ioctl(socket, SIOCGIFFLAGS, &request) == 0 && (request.ifr_flags |= IFF_UP, true) &&
                  ::ioctl(socket, SIOCSIFFLAGS, &request) == 0;
  const int error = errno;
  ::close(socket);
  return up ? "" : fmt::format("the loopback device: {}", std::strerror(error));
}

std::string cover_folders() {
  const auto wrong = [](const char* what) { return fmt::format("{}: {}", what, std::strerror(errno)); };
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return wrong("private mounts");
  std::map<std::string, int> outside;  // descriptors of the covered folders
  for (const char* folder : {"/tmp", "/var/tmp", "/dev/shm"}) {
    struct stat found {};
    if (::lstat(folder, &found) != 0 || !S_ISDIR(found.st_mode)) continue;
    outside[folder] = ::open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (::mount("tmpfs", folder, "tmpfs", 0, "mode=1777") != 0) return wrong(folder);
  }
  std::error_code error;
  for (const auto& [folder, descriptor] : outside) {
    const std::string seen_as = kOutside + folder;
    if (!std::filesystem::create_directories(seen_as, error)) return wrong(seen_as.c_str());
    if (::mount(fmt::format("/proc/self/fd/{}", descriptor).c_str(), seen_as.c_str(), nullptr, MS_BIND, nullptr) != 0)
      return wrong(seen_as.c_str());
    ::close(descriptor);
  }
  if (::mkdir(kQueues, 0755) != 0) return wrong(kQueues);
  static_cast<void>(::mount("mqueue", kQueues, "mqueue", 0, nullptr));  // fails on kernels without message queues
  return {};
}

std::string enter_new_namespaces(bool own_users) {
  const uid_t user = ::geteuid();
  const gid_t group = ::getegid();
  if (::unshare(kNamespaces | (own_users ? CLONE_NEWUSER : 0)) != 0) return fmt::format("unshare: {}", std::strerror(errno));
  if (own_users) {  // without these maps no user could own files in the new folders
    write_text("/proc/self/setgroups", "deny");
    write_text("/proc/self/uid_map", fmt::format("{0} {0} 1", user));
    write_text("/proc/self/gid_map", fmt::format("{0} {0} 1", group));
  }
  if (std::string wrong = cover_folders(); !wrong.empty()) return wrong;
  return bring_loopback_up();
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

/// Calls `add(path, words)` for each line of a table of the kernel, without its heading.
template <typename Add>
void each_line(const std::string& path, Add add) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) add(path, words_of(line));
}

ino_t network_of(const std::string& process) {
  struct stat found {};
  return ::stat(fmt::format("/proc/{}/ns/net", process).c_str(), &found) == 0 ? found.st_ino : 0;
}

std::string list_sandbox(pid_t keeper) {
  std::string all;
  const ino_t here = network_of("self");
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (name == std::to_string(keeper) || name == std::to_string(::getpid())) continue;
    if (network_of(name) == here) all += fmt::format("process {}\n", name);
  }
  for (const char* table : {"tcp", "tcp6", "udp", "udp6", "raw", "raw6"}) {
    each_line(fmt::format("/proc/net/{}", table), [&](const std::string& path, const std::vector<std::string>& words) {
      // No inode and not listening: the kernel is closing a connection that no process holds.
      constexpr std::size_t kAddress = 1;
      constexpr std::size_t kState = 3;
      constexpr std::size_t kInode = 9;
      if (words.size() <= kInode || (words[kInode] == "0" && words[kState] != "0A")) return;
      all += fmt::format("{} {} {}\n", path, words[kAddress], words[kState] == "0A" ? "listens" : "is open");
    });
  }
  each_line("/proc/net/unix", [&](const std::string& path, const std::vector<std::string>& words) {
    constexpr std::size_t kName = 7;
    all += fmt::format("{} {}\n", path, words.size() > kName ? words[kName] : "without a name");
  });
  for (const char* table : {"shm", "sem", "msg"}) {
    each_line(fmt::format("/proc/sysvipc/{}", table), [&](const std::string& path, const std::vector<std::string>& words) {
      all += fmt::format("{} {}\n", path, words.size() > 1 ? words[1] : "?");
    });
  }
  for (const char* folder : {"/tmp", "/var/tmp", "/dev/shm", kQueues}) {
    for (auto entry = std::filesystem::recursive_directory_iterator(folder, error);
         !error && entry != std::filesystem::recursive_directory_iterator(); entry.increment(error)) {
      if (entry->path() == kBelow) {
        entry.disable_recursion_pending();
      } else {
        all += fmt::format("file {}\n", entry->path().string());
      }
    }
  }
  return all;
}

/// The text that `body` returns in a child process.
template <typename Body>
std::string text_of_child(Body body) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return "no pipe";
  const pid_t pid = ::fork();
  if (pid == 0) {
    const std::string text = body();
    for (std::size_t written = 0; written < text.size();) {
      const ssize_t some = ::write(ends[1], text.data() + written, text.size() - written);
      if (some <= 0) break;
      written += static_cast<std::size_t>(some);
    }
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t got = 0; (got = ::read(ends[0], buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), static_cast<std::size_t>(got));
  ::close(ends[0]);
  ::waitpid(pid, nullptr, 0);
  return text;
}

}  // namespace

Sandbox::Sandbox() {
  for (const bool own_users : {false, true}) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) {
      unavailable_ = "no pipe";
      return;
    }
    own_users_ = own_users;
    keeper_ = ::fork();
    if (keeper_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // the keeper must not outlive the test
      std::string wrong = enter_new_namespaces(own_users);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a change of user resets it
      wrong += '\n';
      if (::write(ends[1], wrong.data(), wrong.size()) < 0) ::_exit(1);
      for (;;) ::pause();
    }
    ::close(ends[1]);
    unavailable_.clear();
    char c = 0;
    bool whole = false;
    while (!whole && ::read(ends[0], &c, 1) == 1) c == '\n' ? whole = true : (unavailable_ += c, false);
    ::close(ends[0]);
    if (!whole) unavailable_ = "the keeper process died";
    if (unavailable_.empty()) return;
    ::kill(keeper_, SIGKILL);
    ::waitpid(keeper_, nullptr, 0);
    keeper_ = -1;
  }
}

Sandbox::~Sandbox() {
  if (keeper_ < 0) return;
  ::kill(keeper_, SIGKILL);
  ::waitpid(keeper_, nullptr, 0);
}

bool Sandbox::enter() const {
  const int process = static_cast<int>(::syscall(SYS_pidfd_open, keeper_, 0));
  const bool in = process >= 0 && ::setns(process, kNamespaces | (own_users_ ? CLONE_NEWUSER : 0)) == 0;
  if (process >= 0) ::close(process);
  return in;
}

std::string Sandbox::from_inside(const std::string& folder) { return kOutside + folder; }

std::string Sandbox::contents() const {
  return text_of_child(
      [this] { return enter() ? list_sandbox(keeper_) : fmt::format("cannot enter the sandbox: {}", std::strerror(errno)); });
}

}  // namespace shoal::testing
