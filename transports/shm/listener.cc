#include "transports/shm/listener.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <shoal/limits.h>

#include "src/trust/proof.h"
#include "transports/shm/message.h"
#include "transports/shm/process_identity.h"
#include "transports/shm/segment.h"

namespace shoal::shm {

namespace {

/// The start of an address, of fixed size; the name of the socket follows.
struct AddressHead {
  std::uint64_t magic = kSegmentMagic;
  std::uint32_t version = kProtocolVersion;
  std::int32_t rank = 0;
  std::uint64_t job_id = 0;
  std::array<std::byte, 16> secret{};
  std::uint64_t space = 0;
};
static_assert(sizeof(AddressHead) == 48, "no padding: the bytes are compared and sent");

}  // namespace

Result<Listener> Listener::create(int rank, std::uint64_t job_id) {
  Listener listener;
  listener.rank_ = rank;
  listener.job_id_ = job_id;
  listener.secret_ = random_nonce();
  listener.socket_ = Descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.socket_.valid()) return system_error("shm: socket", errno);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // An address without a path lets the kernel choose a free abstract name: nothing in any file system, nothing to clean up.
  if (::bind(listener.socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(sa_family_t)) != 0) {
    return system_error("shm: bind", errno);
  }
  socklen_t size = sizeof(address);
  if (::getsockname(listener.socket_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return system_error("shm: getsockname", errno);
  }
  listener.name_.assign(address.sun_path, size - offsetof(sockaddr_un, sun_path));
  if (::listen(listener.socket_.get(), kMaxHostRanks) != 0) return system_error("shm: listen", errno);
  return listener;
}

std::string Listener::address() const {
  AddressHead head;
  head.rank = rank_;
  head.job_id = job_id_;
  head.secret = secret_;
  head.space = own_identity().space;
  return std::string(reinterpret_cast<const char*>(&head), sizeof(head)) + name_;
}

Result<ListenerAddress> parse_address(std::string_view bytes, int rank, std::uint64_t job_id) {
  const std::string rank_text = "rank " + std::to_string(rank);
  AddressHead head;
  if (bytes.size() <= sizeof(head) || bytes.size() > sizeof(head) + sizeof(sockaddr_un::sun_path)) {
    return Status(StatusCode::invalid_argument, "shm: the address of " + rank_text + " is not an address of this transport");
  }
  std::memcpy(&head, bytes.data(), sizeof(head));
  if (head.magic != kSegmentMagic || head.version != kProtocolVersion) {
    return Status(StatusCode::invalid_argument,
                  "shm: the address of " + rank_text + " is of another version of this transport");
  }
  if (head.rank != rank || head.job_id != job_id) {
    return Status(StatusCode::mismatch, "shm: the address given for " + rank_text + " belongs to rank " +
                                            std::to_string(head.rank) + (head.job_id == job_id ? "" : " of another job"));
  }
  return ListenerAddress{bytes.substr(sizeof(head)), head.secret, head.space};
}

Result<Descriptor> dial(const ListenerAddress& to, int rank, std::chrono::steady_clock::time_point deadline) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, to.name.data(), to.name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + to.name.size());
  for (;;) {
    Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket.valid()) return system_error("shm: socket", errno);
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0) return socket;
    if (errno != EAGAIN && errno != EINTR) {
      const int error = errno;
      return Status(StatusCode::peer_failed, system_error("shm: connecting to rank " + std::to_string(rank), error).message() +
                                                 " (has it ended, or is it on another host or in another network namespace?)");
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return Status(StatusCode::timeout, "shm: rank " + std::to_string(rank) + " accepted no connection by the deadline");
    }
    ::poll(nullptr, 0, std::min(poll_timeout_ms(deadline), 1));
  }
}

bool same_user(int socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0 && credentials.uid == ::geteuid();
}

}  // namespace shoal::shm
