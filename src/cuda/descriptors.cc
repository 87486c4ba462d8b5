#include "src/cuda/descriptors.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <random>

#include <fmt/format.h>

#include "src/status/deadline.h"

namespace shoal::cuda {
namespace {

using Clock = std::chrono::steady_clock;

/// Where a rank listens. The names of such sockets belong to no folder, and go with them.
struct Door {
  sockaddr_un address{};
  std::uint32_t length = 0;
  std::int32_t error = 0;    ///< why there is none
  std::uint64_t secret = 0;  ///< who knocks must know it
};

struct Knock {
  std::uint64_t secret = 0;
  std::int32_t rank = 0;
};

Door open_door(Descriptor& socket, int ranks) {
  Door door;
  socket = Descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  door.address.sun_family = AF_UNIX;
  socklen_t length = sizeof door.address;
  auto* address = reinterpret_cast<sockaddr*>(&door.address);
  // A bind without a name has the kernel choose one.
  if (!socket.valid() || ::bind(socket.get(), address, sizeof(sa_family_t)) != 0 || ::listen(socket.get(), ranks) != 0 ||
      ::getsockname(socket.get(), address, &length) != 0) {
    door.error = errno;
    return door;
  }
  door.length = length;
  std::random_device random;
  door.secret = std::uint64_t{random()} << 32 | random();
  return door;
}

Status give(const Door& door, int own, int rank) {
  const Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return system_error("a Unix socket", errno);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&door.address), door.length) != 0)
    return {StatusCode::unsupported, fmt::format("the ranks of this node cannot reach each other's Unix sockets: {}",
                                                 system_error("connect", errno).message())};
  Knock knock{door.secret, rank};
  iovec bytes{&knock, sizeof knock};
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* attachment = CMSG_FIRSTHDR(&message);
  attachment->cmsg_level = SOL_SOCKET;
  attachment->cmsg_type = SCM_RIGHTS;
  attachment->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(attachment), &own, sizeof own);
  if (::sendmsg(socket.get(), &message, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof knock))
    return system_error("sending a descriptor to another rank", errno);
  return {};
}

/// Waits until `socket` is readable; false at the deadline.
bool is_readable(int socket, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd wanted{socket, POLLIN, 0};
    const int ready = ::poll(&wanted, 1, static_cast<int>(std::clamp<long long>(left, 0, 60000)));
    if (ready > 0) return true;
    if (ready == 0 && left <= 0) return false;
  }
}

/// One message, if it is of a rank of this job; others are sent away.
void take(int socket, std::uint64_t secret, std::vector<Descriptor>& all) {
  Knock knock;
  iovec bytes{&knock, sizeof knock};
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) != static_cast<ssize_t>(sizeof knock)) return;
  const cmsghdr* attachment = CMSG_FIRSTHDR(&message);
  if (attachment == nullptr || attachment->cmsg_level != SOL_SOCKET || attachment->cmsg_type != SCM_RIGHTS) return;
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(attachment), sizeof descriptor);
  Descriptor received(descriptor);
  const bool known = knock.secret == secret && knock.rank >= 0 && static_cast<std::size_t>(knock.rank) < all.size();
  if (known) all[static_cast<std::size_t>(knock.rank)] = std::move(received);
}

}  // namespace

Result<std::vector<Descriptor>> hand_around(Communicator& node, int own, const std::vector<bool>& givers,
                                            std::chrono::milliseconds timeout) {
  const auto deadline = deadline_after(timeout);
  Descriptor socket;
  const Door door = open_door(socket, node.size());
  std::vector<Door> doors(static_cast<std::size_t>(node.size()));
  if (Status status = node.all_gather(&door, doors.data(), sizeof door, DataType::uint8); !status.ok()) return status;
  for (const Door& each : doors) {
    if (each.error != 0) return system_error("a Unix socket on a rank of this node", each.error);
  }
  std::vector<Descriptor> all(doors.size());
  const auto rank = static_cast<std::size_t>(node.rank());
  for (std::size_t other = 0; other < doors.size() && own >= 0; ++other) {
    if (other == rank) continue;
    if (Status status = give(doors[other], own, node.rank()); !status.ok()) return status;
  }
  const auto is_missing = [&](std::size_t other) { return other != rank && givers[other] && !all[other].valid(); };
  for (std::size_t other = 0; other < all.size(); ++other) {
    while (is_missing(other)) {
      if (!is_readable(socket.get(), deadline))
        return Status(StatusCode::timeout, fmt::format("rank {} of the node has not sent its descriptor", other));
      const Descriptor visitor(::accept4(socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (visitor.valid() && is_readable(visitor.get(), deadline)) take(visitor.get(), door.secret, all);
    }
  }
  return all;
}

}  // namespace shoal::cuda
