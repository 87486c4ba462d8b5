#include "transports/tcp/keeper_stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "src/base/little_endian.h"
#include "transports/common/checksum.h"

namespace shoal::tcp {
namespace {

constexpr std::size_t kReadBytes = 16384;

}  // namespace

KeeperStream::KeeperStream(Connection connection) : socket_(std::move(connection.socket)) {
  if (connection.keys) cipher_ = std::make_unique<RecordCipher>(*connection.keys, kHeaderBytes + kMostBytes);
}

void KeeperStream::send(std::span<const std::byte> message) {
  if (ended_ || send_error_ != 0) return;
  if (unsent_.size() + message.size() > kMostUnread) return stop_sending(ETIMEDOUT);
  std::array<std::byte, kHeaderBytes> header;
  store_little(header.data(), static_cast<std::uint32_t>(message.size()));
  store_little(header.data() + 4, crc32c(message));
  unsent_.insert(unsent_.end(), header.begin(), header.end());
  unsent_.insert(unsent_.end(), message.begin(), message.end());
  flush();
}

void KeeperStream::flush() {
  std::size_t taken = 0;  // of unsent_
  while (!ended_ && send_error_ == 0) {
    std::span<const std::byte> bytes = std::span(unsent_).subspan(taken);
    if (cipher_ != nullptr) {
      if (!has_sealed() && !bytes.empty()) {
        bytes = bytes.first(std::min(bytes.size(), cipher_->most_bytes()));
        cipher_->seal(bytes);
        taken += bytes.size();
      }
      bytes = cipher_->outgoing();
    }
    if (bytes.empty()) break;
    const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (sent < 0) return stop_sending(errno);
    if (cipher_ != nullptr) {
      cipher_->sent(static_cast<std::size_t>(sent));
    } else {
      taken += static_cast<std::size_t>(sent);
    }
  }
  unsent_.erase(unsent_.begin(), unsent_.begin() + static_cast<std::ptrdiff_t>(taken));
  if (finishing_ && is_flushed() && !ended_) ::shutdown(socket_.get(), SHUT_WR);
}

void KeeperStream::receive(std::vector<std::vector<std::byte>>& messages) {
  while (!ended_ && read_some()) {
    if (!take_records() || !take_messages(messages)) end(0);
  }
  if (send_error_ != 0 && !ended_) end(send_error_);
}

bool KeeperStream::read_some() {
  const std::size_t before = received_.size();
  if (cipher_ == nullptr) received_.resize(before + kReadBytes);
  const std::span<std::byte> room = cipher_ == nullptr ? std::span(received_).subspan(before) : cipher_->room();
  const ssize_t got = ::recv(socket_.get(), room.data(), room.size(), MSG_DONTWAIT);
  const int error = got < 0 ? errno : 0;
  const std::size_t bytes = got > 0 ? static_cast<std::size_t>(got) : 0;
  if (cipher_ == nullptr) {
    received_.resize(before + bytes);
  } else {
    cipher_->arrived(bytes);
  }
  if (got == 0 || (got < 0 && error != EAGAIN && error != EWOULDBLOCK && error != EINTR)) end(error);
  return got > 0;
}

// False where a record is malformed.
bool KeeperStream::take_records() {
  while (cipher_ != nullptr) {
    const std::size_t bytes = cipher_->waiting_bytes();
    if (bytes == 0) break;
    if (bytes > cipher_->most_bytes()) return false;
    received_.resize(received_.size() + bytes);
    if (!cipher_->open(received_.data() + received_.size() - bytes)) return false;
  }
  return true;
}

// False where a message is malformed.
bool KeeperStream::take_messages(std::vector<std::vector<std::byte>>& messages) {
  std::span<const std::byte> rest = received_;
  while (rest.size() >= kHeaderBytes) {
    const auto bytes = load_little<std::uint32_t>(rest.data());
    if (bytes > kMostBytes) return false;
    if (rest.size() < kHeaderBytes + bytes) break;
    const auto message = rest.subspan(kHeaderBytes, bytes);
    if (load_little<std::uint32_t>(rest.data() + 4) != crc32c(message)) return false;
    messages.emplace_back(message.begin(), message.end());
    rest = rest.subspan(kHeaderBytes + bytes);
  }
  received_.erase(received_.begin(), received_.end() - static_cast<std::ptrdiff_t>(rest.size()));
  return true;
}

void KeeperStream::finish_sending() noexcept {
  finishing_ = true;
  flush();
}

// What the peer sent before it closed can still be received.
void KeeperStream::stop_sending(int error) noexcept {
  send_error_ = error;
  unsent_.clear();
}

void KeeperStream::end(int error) noexcept {
  ended_ = true;
  error_ = error;
  unsent_.clear();
}

std::size_t KeeperStream::memory_bytes() const noexcept {
  return kReadBytes + (cipher_ == nullptr ? 0 : cipher_->memory_bytes());
}

}  // namespace shoal::tcp
