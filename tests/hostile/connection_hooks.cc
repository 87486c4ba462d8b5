// Replacements of connect(), send() and sendmsg() that call the system's (or the sanitizer's).
#include "tests/hostile/connection_hooks.h"

#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>

#include "transports/tcp/address.h"

namespace shoal::hostile {
namespace {

struct Limit {
  int let_through = 0;
  int until_stage = 0;
};

SharedState* state = nullptr;  // set in ranks only
std::mutex mutex;              // guards `limits`: any thread may reconnect
std::map<std::string, Limit> limits;
std::array<std::atomic<RecordedConnection*>, 4096> recording_of_socket;

std::string name_of(const sockaddr* to, socklen_t length) {
  if (to->sa_family == AF_UNIX) {
    const auto* const name = reinterpret_cast<const sockaddr_un*>(to)->sun_path;
    return "@" + std::string(name + 1, length - offsetof(sockaddr_un, sun_path) - 1);
  }
  tcp::SocketAddress address;
  std::memcpy(&address.storage, to, length);
  return address.to_string();
}

// A number that identifies a socket: descriptors are reused.
std::uint64_t inode_of(int socket) {
  struct stat status {};
  return ::fstat(socket, &status) == 0 ? status.st_ino : 0;
}

// Whether this connection is held back for now.
bool is_held_back(const std::string& to) {
  const std::scoped_lock lock(mutex);
  const auto limit = limits.find(to);
  return limit != limits.end() && state->stage < limit->second.until_stage && --limit->second.let_through < 0;
}

void start_recording(int socket, const std::string& to) {
  const std::size_t at = state->connections++;
  if (at >= state->recorded.size() || static_cast<std::size_t>(socket) >= recording_of_socket.size()) return;
  RecordedConnection& recording = state->recorded[at];
  to.copy(recording.to.data(), recording.to.size() - 1);
  recording.inode = inode_of(socket);
  recording_of_socket[static_cast<std::size_t>(socket)] = &recording;
}

void record(int socket, std::string_view bytes) {
  if (socket < 0 || static_cast<std::size_t>(socket) >= recording_of_socket.size()) return;
  std::atomic<RecordedConnection*>& place = recording_of_socket[static_cast<std::size_t>(socket)];
  RecordedConnection* const recording = place;
  if (recording == nullptr) return;
  const std::size_t before = recording->bytes;
  const std::size_t part = std::min(bytes.size(), recording->text.size() - before);
  if (part == 0 || recording->inode != inode_of(socket)) {
    place = nullptr;
    return;
  }
  bytes.copy(recording->text.data() + before, part);
  recording->bytes = before + part;
}

template <typename Function>
Function* original(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

void record_connections(SharedState& shared) { state = &shared; }

void hold_back(const std::string& address, int let_through, int until_stage) {
  const std::scoped_lock lock(mutex);
  limits[address] = {let_through, until_stage};
}

}  // namespace shoal::hostile

using shoal::hostile::original;
using shoal::hostile::state;

extern "C" int connect(int socket, const sockaddr* to, socklen_t length) {
  static auto* const system = original<int(int, const sockaddr*, socklen_t)>("connect");
  if (state == nullptr) return system(socket, to, length);
  const std::string name = shoal::hostile::name_of(to, length);
  if (shoal::hostile::is_held_back(name)) {
    errno = ECONNREFUSED;
    return -1;
  }
  const int result = system(socket, to, length);
  const int error = errno;
  if (result == 0 || error == EINPROGRESS) shoal::hostile::start_recording(socket, name);
  errno = error;
  return result;
}

extern "C" ssize_t send(int socket, const void* bytes, size_t size, int flags) {
  static auto* const system = original<ssize_t(int, const void*, size_t, int)>("send");
  const ssize_t sent = system(socket, bytes, size, flags);
  if (state == nullptr || sent <= 0) return sent;
  shoal::hostile::record(socket, {static_cast<const char*>(bytes), static_cast<std::size_t>(sent)});
  return sent;
}

extern "C" ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  static auto* const system = original<ssize_t(int, const msghdr*, int)>("sendmsg");
  const ssize_t sent = system(socket, message, flags);
  if (state == nullptr || sent <= 0) return sent;
  auto left = static_cast<std::size_t>(sent);
  for (std::size_t i = 0; i < message->msg_iovlen && left > 0; ++i) {
    const iovec& part = message->msg_iov[i];
    const std::size_t bytes = std::min(left, part.iov_len);
    shoal::hostile::record(socket, {static_cast<const char*>(part.iov_base), bytes});
    left -= bytes;
  }
  return sent;
}
