// connect(), send() and sendmsg() of this program pass here on their way to the system's (or the sanitizer's).
#include "tests/hostile/ways.h"

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

struct Way {
  int let_through = 0;
  int until_stage = 0;
};

Board* board = nullptr;  // of a rank
std::mutex mutex;        // of `ways`: connections are made anew in any thread
std::map<std::string, Way> ways;
std::array<std::atomic<Taken*>, 4096> taken_of_socket;

std::string name_of(const sockaddr* to, socklen_t length) {
  if (to->sa_family == AF_UNIX) {
    const auto* const name = reinterpret_cast<const sockaddr_un*>(to)->sun_path;
    return "@" + std::string(name + 1, length - offsetof(sockaddr_un, sun_path) - 1);
  }
  tcp::SocketAddress address;
  std::memcpy(&address.storage, to, length);
  return address.to_string();
}

// The number of a socket that no other will ever have: descriptors are used again.
std::uint64_t inode_of(int socket) {
  struct stat status {};
  return ::fstat(socket, &status) == 0 ? status.st_ino : 0;
}

// Whether this connection is not to be, for now.
bool is_held_up(const std::string& to) {
  const std::scoped_lock lock(mutex);
  const auto way = ways.find(to);
  return way != ways.end() && board->stage < way->second.until_stage && --way->second.let_through < 0;
}

void start_taking(int socket, const std::string& to) {
  const std::size_t at = board->takes++;
  if (at >= board->taken.size() || static_cast<std::size_t>(socket) >= taken_of_socket.size()) return;
  Taken& taken = board->taken[at];
  to.copy(taken.to.data(), taken.to.size() - 1);
  taken.inode = inode_of(socket);
  taken_of_socket[static_cast<std::size_t>(socket)] = &taken;
}

void take(int socket, std::string_view bytes) {
  if (socket < 0 || static_cast<std::size_t>(socket) >= taken_of_socket.size()) return;
  std::atomic<Taken*>& place = taken_of_socket[static_cast<std::size_t>(socket)];
  Taken* const taken = place;
  if (taken == nullptr) return;
  const std::size_t before = taken->bytes;
  const std::size_t part = std::min(bytes.size(), taken->text.size() - before);
  if (part == 0 || taken->inode != inode_of(socket)) {
    place = nullptr;
    return;
  }
  bytes.copy(taken->text.data() + before, part);
  taken->bytes = before + part;
}

template <typename Function>
Function* original(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

void watch_ways(Board& shared) { board = &shared; }

void hold_up(const std::string& address, int let_through, int until_stage) {
  const std::scoped_lock lock(mutex);
  ways[address] = {let_through, until_stage};
}

}  // namespace shoal::hostile

using shoal::hostile::board;
using shoal::hostile::original;

extern "C" int connect(int socket, const sockaddr* to, socklen_t length) {
  static auto* const system = original<int(int, const sockaddr*, socklen_t)>("connect");
  if (board == nullptr) return system(socket, to, length);
  const std::string name = shoal::hostile::name_of(to, length);
  if (shoal::hostile::is_held_up(name)) {
    errno = ECONNREFUSED;
    return -1;
  }
  const int result = system(socket, to, length);
  const int error = errno;
  if (result == 0 || error == EINPROGRESS) shoal::hostile::start_taking(socket, name);
  errno = error;
  return result;
}

extern "C" ssize_t send(int socket, const void* bytes, size_t size, int flags) {
  static auto* const system = original<ssize_t(int, const void*, size_t, int)>("send");
  const ssize_t sent = system(socket, bytes, size, flags);
  if (board == nullptr || sent <= 0) return sent;
  shoal::hostile::take(socket, {static_cast<const char*>(bytes), static_cast<std::size_t>(sent)});
  return sent;
}

extern "C" ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  static auto* const system = original<ssize_t(int, const msghdr*, int)>("sendmsg");
  const ssize_t sent = system(socket, message, flags);
  if (board == nullptr || sent <= 0) return sent;
  auto left = static_cast<std::size_t>(sent);
  for (std::size_t i = 0; i < message->msg_iovlen && left > 0; ++i) {
    const iovec& part = message->msg_iov[i];
    const std::size_t bytes = std::min(left, part.iov_len);
    shoal::hostile::take(socket, {static_cast<const char*>(part.iov_base), bytes});
    left -= bytes;
  }
  return sent;
}
