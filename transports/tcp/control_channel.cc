#include "transports/tcp/control_channel.h"

#include <algorithm>
#include <cerrno>

namespace shoal::tcp {

// `bytes`: some have been added to in_.
ControlChannel::Received ControlChannel::read_some() {
  LinkSocket& from = socket();
  const std::size_t room = in_.size() - in_bytes_;
  const ssize_t got = from.read(in_.data() + in_bytes_, room, room);
  from.readable = false;
  if (got > 0) {
    in_bytes_ += static_cast<std::size_t>(got);
    return Received::bytes;
  }
  if (got < 0 && errno == EBADMSG) {
    sockets_.on_damage(from, "sent control records that were damaged in transit");
    return Received::end;
  }
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Received::nothing;
  if (got < 0 && (errno == ENOBUFS || errno == ENOMEM)) {
    from.readable = true;  // no event will report these bytes again
    return Received::nothing;
  }
  sockets_.on_end(from, got == 0 ? 0 : errno);
  return Received::end;
}

void ControlChannel::flush() {
  LinkSocket& to = socket();
  if (to.is_closed()) return;
  to.blocked = false;
  if (to.cipher != nullptr) {
    while (!(is_flushed() && to.cipher->outgoing().empty()) && send_encrypted()) {
    }
  } else if (!is_flushed()) {
    std::size_t taken = 0;
    sockets_.send(to, std::span(out_).first(out_bytes_), taken);
    remove_sent(taken);
  }
}

// Sends one encrypted record; false where the kernel has not taken all of it.
bool ControlChannel::send_encrypted() {
  RecordCipher& cipher = *socket().cipher;
  if (cipher.outgoing().empty()) {
    const std::size_t bytes = std::min(out_bytes_, cipher.most_bytes() / kControlRecordBytes * kControlRecordBytes);
    cipher.seal(std::span(out_).first(bytes));
    remove_sent(bytes);
  }
  std::size_t taken = 0;
  const bool all = sockets_.send(socket(), cipher.outgoing(), taken);
  cipher.sent(taken);
  return all;
}

void ControlChannel::remove_sent(std::size_t bytes) noexcept {
  out_bytes_ -= bytes;
  std::memmove(out_.data(), out_.data() + bytes, out_bytes_);
}

}  // namespace shoal::tcp
