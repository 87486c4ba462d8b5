// TcpLink: writing to and reading from a socket. Every tile passes here, so these functions are inlined; see tests/cost.
#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>

#include "transports/tcp/link.h"
#include "transports/tcp/reactor.h"

namespace shoal::tcp {

// The bytes of the tiles that the flow has pulled and that are not in the kernel. Tiles are contiguous in memory, in the
// order in which they were taken.
inline std::span<const std::byte> TcpLink::due(const Flow& flow) noexcept {
  const std::uint64_t begin = outgoing(flow.first).begin + flow.sent_of_first;
  const Outgoing& end = outgoing(flow.last - 1);
  return {memory_.data() + begin % memory_.size(), end.begin + end.bytes - begin};
}

// False where the kernel has not taken all bytes; `taken` is their number.
inline bool TcpLink::send_some(Flow& flow, std::span<const std::byte> bytes, std::size_t& taken) {
  ssize_t count = 0;
  do {
    count = ::send(flow.socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (count < 0 && errno == EINTR);
  return note_taken(flow, count, bytes.size(), taken);
}

// Evaluates the result of a send.
inline bool TcpLink::note_taken(Flow& flow, ssize_t count, std::size_t offered, std::size_t& taken) {
  taken = count < 0 ? 0 : static_cast<std::size_t>(count);
  flow.taken_bytes += taken;
  if (taken == offered) return true;
  // Where the kernel is out of memory rather than out of room no event may follow: watch() tries again.
  flow.blocked = true;
  if (count >= 0 || errno == EAGAIN || errno == EWOULDBLOCK) return false;
  if (errno == ENOBUFS || errno == ENOMEM) {
    reactor_->watch_soon();
    return false;
  }
  // Tiles may have arrived before the connection broke: the link ends only when reading reaches the end.
  if (closing_error_ == 0) closing_error_ = errno;
  hang_up(flow);
  return false;
}

// As recv(): at most `want` bytes, or, of an encrypted connection, one record of at most `room`. EBADMSG: it was damaged.
inline ssize_t TcpLink::read(Flow& flow, std::byte* target, std::size_t want, std::size_t room) {
  if (flow.cipher != nullptr) return read_sealed(flow, target, room);
  ssize_t got = 0;
  do {
    got = ::recv(flow.socket.get(), target, want, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  return got;
}

}  // namespace shoal::tcp
