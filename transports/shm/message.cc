#include "transports/shm/message.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "src/base/hash.h"
#include "transports/shm/segment.h"

namespace shoal::shm {

namespace {

constexpr std::size_t kMaxDescriptors = 1;

}  // namespace

Message make_message(MessageKind kind) {
  Message message;
  message.magic = kSegmentMagic;
  message.version = kProtocolVersion;
  message.kind = kind;
  return message;
}

Message make_refusal(const Status& status) {
  Message message = make_message(MessageKind::refusal);
  message.code = static_cast<std::int32_t>(status.code());
  const std::size_t length = std::min(status.message().size(), message.text.size() - 1);
  std::memcpy(message.text.data(), status.message().data(), length);
  return message;
}

Status refusal_status(const Message& message) {
  std::string words(message.text.begin(), std::find(message.text.begin(), message.text.end(), '\0'));
  // The text may go to a terminal: the peer must not be able to write lines or colours of its own there.
  std::replace_if(
      words.begin(), words.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  const bool known = message.code > static_cast<std::int32_t>(StatusCode::ok) &&
                     message.code <= static_cast<std::int32_t>(StatusCode::internal);
  return {known ? static_cast<StatusCode>(message.code) : StatusCode::internal, std::move(words)};
}

Status told_by(int rank, const Message& refusal) {
  Status status = refusal_status(refusal);
  if (status.message().find("rank ") != std::string::npos) return status;
  return {status.code(), "rank " + std::to_string(rank) + " aborted: " + status.message()};
}

std::uint64_t hash_ranks(const std::vector<int>& ranks) { return hash_of(std::as_bytes(std::span(ranks))); }

bool send_message(int socket, const Message& message, int descriptor) {
  Message copy = message;
  iovec bytes{&copy, sizeof(copy)};
  alignas(cmsghdr) std::byte control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  if (descriptor >= 0) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(sizeof descriptor);
    cmsghdr* attachment = CMSG_FIRSTHDR(&header);
    attachment->cmsg_level = SOL_SOCKET;
    attachment->cmsg_type = SCM_RIGHTS;
    attachment->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(attachment), &descriptor, sizeof descriptor);
  }
  ssize_t sent;
  do {
    sent = ::sendmsg(socket, &header, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(sizeof(copy));
}

Received receive_message(int socket) {
  Received received;
  iovec bytes{&received.message, sizeof(received.message)};
  alignas(cmsghdr) std::byte control[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  header.msg_control = control;
  ssize_t size;
  const auto receive = [&] {
    header.msg_controllen = sizeof(control);
    do {
      size = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (size < 0 && errno == EINTR);
  };
  receive();
  // "Closed" may come before a message, so receive once more. The kernel may find the queue empty, and then the peer sends
  // its last message and closes. Or the kernel reports ECONNRESET once, before the messages in the queue, where the peer
  // closed without having read everything.
  if (size == 0 || (size < 0 && errno == ECONNRESET)) receive();
  if (size < 0) {
    received.outcome = errno == EAGAIN || errno == EWOULDBLOCK ? ReceiveOutcome::nothing : ReceiveOutcome::closed;
    return received;
  }
  for (cmsghdr* item = CMSG_FIRSTHDR(&header); item != nullptr; item = CMSG_NXTHDR(&header, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(item) + i * sizeof(int), sizeof(int));
      received.descriptors.emplace_back(fd);
    }
  }
  if (size == 0) {
    received.outcome = ReceiveOutcome::closed;
  } else if (size != static_cast<ssize_t>(sizeof(Message)) || (header.msg_flags & MSG_TRUNC) != 0 ||
             received.message.magic != kSegmentMagic || received.message.version != kProtocolVersion) {
    received.outcome = ReceiveOutcome::junk;
    received.descriptors.clear();
  } else if ((header.msg_flags & MSG_CTRUNC) != 0) {
    received.outcome = ReceiveOutcome::no_room;
    received.descriptors.clear();
  } else {
    received.outcome = ReceiveOutcome::message;
  }
  return received;
}

int poll_timeout_ms(std::chrono::steady_clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, 1'000'000'000));
}

}  // namespace shoal::shm
