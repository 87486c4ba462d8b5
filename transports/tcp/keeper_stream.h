// KeeperStream: messages over one connection between the keepers of two hosts.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "transports/tcp/connection.h"

namespace shoal::tcp {

/// A message is its length and its CRC-32C, four bytes each, and its bytes; in a job that encrypts all of it lies in records of
/// a RecordCipher. Nothing blocks. Thread rule: one thread at a time.
class KeeperStream {
 public:
  static constexpr std::size_t kMostBytes = 16384;  ///< of a message
  /// A peer that leaves so many bytes unread does not read.
  static constexpr std::size_t kMostUnread = std::size_t{32} << 20;

  explicit KeeperStream(Connection connection);

  [[nodiscard]] int descriptor() const noexcept { return socket_.get(); }
  /// Queues it, and sends what the kernel takes. Precondition: it has at most kMostBytes.
  void send(std::span<const std::byte> message);
  /// Sends what the kernel takes.
  void flush();
  /// The kernel has all that was sent, or the connection has ended.
  [[nodiscard]] bool is_flushed() const noexcept { return ended_ || send_error_ != 0 || (unsent_.empty() && !has_sealed()); }
  /// receive() will find something without a report by poll().
  [[nodiscard]] bool is_broken() const noexcept { return send_error_ != 0; }
  /// Appends the messages that have arrived to `messages`.
  void receive(std::vector<std::vector<std::byte>>& messages);
  /// No more messages will arrive or leave: the peer has closed, the connection broke, or it carried something malformed.
  [[nodiscard]] bool has_ended() const noexcept { return ended_; }
  /// An errno value; 0: the peer has closed, or sent something malformed.
  [[nodiscard]] int error() const noexcept { return error_; }
  /// Nothing more will be sent; when all has left, the peer sees the end.
  void finish_sending() noexcept;
  /// Of its buffers, without what waits for room in the kernel.
  [[nodiscard]] std::size_t memory_bytes() const noexcept;

 private:
  static constexpr std::size_t kHeaderBytes = 8;

  [[nodiscard]] bool has_sealed() const noexcept { return cipher_ != nullptr && !cipher_->outgoing().empty(); }
  void stop_sending(int error) noexcept;
  void end(int error) noexcept;
  /// False where nothing has arrived.
  bool read_some();
  bool take_records();
  bool take_messages(std::vector<std::vector<std::byte>>& messages);

  Descriptor socket_;
  std::unique_ptr<RecordCipher> cipher_;  // null: not encrypted
  std::vector<std::byte> unsent_;
  std::vector<std::byte> received_;  // the front of a message
  bool finishing_ = false;
  bool ended_ = false;
  int send_error_ = 0;  // an errno value
  int error_ = 0;
};

}  // namespace shoal::tcp
