#include "src/cuda/descriptors.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>

#include <fmt/format.h>

#include "src/base/deadline.h"
#include "src/base/event.h"
#include "src/trust/refusals.h"

namespace shoal::cuda {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kVisitorsPerRank = 8;  // connections that have sent nothing yet

/// Where a rank listens. The sockets have abstract names: no folder holds them, and they disappear with the socket.
struct Door {
  sockaddr_un address{};
  std::uint32_t length = 0;
  std::int32_t error = 0;    ///< why there is no socket
  std::uint64_t secret = 0;  ///< a connecting rank must know it
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
  // bind() without a name: the kernel chooses one.
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

/// Sends `own` to the rank at `door`. Where unauthenticated peers fill its queue, this waits until the deadline at most.
Status give(const Door& door, int own, int rank, Clock::time_point deadline) {
  const Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return system_error("creating a Unix socket", errno);
  const auto left = std::max<std::int64_t>(std::chrono::ceil<std::chrono::microseconds>(deadline - Clock::now()).count(), 1);
  const timeval time_limit{left / 1'000'000, left % 1'000'000};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &time_limit, sizeof time_limit);
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

/// Waits until one of the descriptors is readable.
void wait_for_any(int news, int listener, const std::vector<Descriptor>& visitors) {
  std::vector<pollfd> wanted{{news, POLLIN, 0}, {listener, POLLIN, 0}};
  for (const Descriptor& visitor : visitors) wanted.push_back({visitor.get(), POLLIN, 0});
  ::poll(wanted.data(), wanted.size(), 1000);
}

/// Receives what a connection has sent by now. False where that is nothing; else the connection is finished.
bool take(int socket, std::uint64_t secret, std::vector<Descriptor>& all) {
  Knock knock;
  iovec bytes{&knock, sizeof knock};
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  Descriptor received;
  if (const cmsghdr* attachment = got >= 0 ? CMSG_FIRSTHDR(&message) : nullptr;
      attachment != nullptr && attachment->cmsg_level == SOL_SOCKET && attachment->cmsg_type == SCM_RIGHTS) {
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(attachment), sizeof descriptor);
    received = Descriptor(descriptor);
  }
  const bool known = got == static_cast<ssize_t>(sizeof knock) && received.valid() && knock.secret == secret &&
                     knock.rank >= 0 && static_cast<std::size_t>(knock.rank) < all.size();
  if (known) {
    all[static_cast<std::size_t>(knock.rank)] = std::move(received);
  } else {
    count_refusal("cuda", "it does not know this rank's secret");
  }
  return true;
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
    if (each.error != 0) return system_error("creating a Unix socket on a rank of this node", each.error);
  }
  std::vector<Descriptor> all(doors.size());
  const auto rank = static_cast<std::size_t>(node.rank());
  Status gave;
  for (std::size_t other = 0; other < doors.size() && own >= 0 && gave.ok(); ++other) {
    if (other != rank) gave = give(doors[other], own, node.rank(), deadline);
  }
  // A rank that reaches this barrier has sent what it can: then its descriptor is there to be received. The barrier's error
  // also names a rank that has died or is late.
  const auto news = std::make_shared<Descriptor>(make_event());
  CallOptions time_limit;
  time_limit.timeout =
      std::max(std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()), std::chrono::milliseconds(1));
  auto given = node.barrier_async(time_limit);
  if (!given.ok()) return given.status();
  static_cast<void>(given->on_completion([news](const Status&) { ring_event(news->get()); }));

  const std::size_t most = kVisitorsPerRank * all.size();
  std::size_t missing = 0;
  std::vector<Descriptor> visitors;  // those that send nothing delay no rank
  for (bool last = false; !last;) {
    last = given->is_completed();
    bool comes = true;
    for (std::size_t i = 0; comes && i <= most; ++i) {
      Descriptor visitor(::accept4(socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
      comes = visitor.valid();
      if (comes) visitors.push_back(std::move(visitor));
      std::erase_if(visitors, [&](const Descriptor& each) { return take(each.get(), door.secret, all); });
      if (visitors.size() > most) {
        visitors.erase(visitors.begin());
        count_refusal("cuda", "too many at a time");
      }
    }
    missing = 0;
    while (missing < all.size() && (missing == rank || !givers[missing] || all[missing].valid())) ++missing;
    if (missing == all.size()) break;
    if (!last) wait_for_any(news->get(), socket.get(), visitors);
  }
  if (Status status = given->wait(); !status.ok()) return status;
  if (!gave.ok()) return gave;
  if (missing == all.size()) return all;
  return Status(StatusCode::unsupported, fmt::format("rank {} of the node could not send its descriptor", missing));
}

}  // namespace shoal::cuda
