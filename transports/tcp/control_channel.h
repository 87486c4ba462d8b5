// The control records of a link, in both directions.
#pragma once

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>

#include "transports/tcp/link_sockets.h"
#include "transports/tcp/wire.h"

namespace shoal::tcp {

/// Uses the link's last socket. Records wait here while the kernel has no room. Thread rule: that of the link.
class ControlChannel {
 public:
  explicit ControlChannel(LinkSockets& sockets) : sockets_(sockets) {}

  [[nodiscard]] bool has_room() const noexcept { return out_bytes_ + kControlRecordBytes <= out_.size(); }
  /// Sends the record with the next flush(). Precondition: has_room().
  void add(const ControlRecord& record) noexcept {
    encode(record, std::span<std::byte, kControlRecordBytes>(out_.data() + out_bytes_, kControlRecordBytes));
    out_bytes_ += kControlRecordBytes;
  }
  void flush();
  /// Nothing waits for room in the kernel.
  [[nodiscard]] bool is_flushed() const noexcept { return out_bytes_ == 0; }
  /// The connection is lost, and with it what was under way.
  void reset() noexcept { in_bytes_ = out_bytes_ = 0; }

  enum class Received { nothing, bytes, end };
  /// Passes each record that has arrived to `on_record`. `end`: the connection has ended or was damaged, which is settled.
  template <typename OnRecord>
  Received receive(OnRecord&& on_record);

 private:
  [[nodiscard]] LinkSocket& socket() noexcept { return sockets_.for_control(); }
  Received read_some();
  bool send_encrypted();
  void remove_sent(std::size_t bytes) noexcept;

  LinkSockets& sockets_;
  std::array<std::byte, 32 * kControlRecordBytes> in_;
  std::size_t in_bytes_ = 0;
  std::array<std::byte, 32 * kControlRecordBytes> out_;
  std::size_t out_bytes_ = 0;
};

template <typename OnRecord>
ControlChannel::Received ControlChannel::receive(OnRecord&& on_record) {
  Received result = Received::nothing;
  while (!socket().is_closed()) {
    const Received read = read_some();
    if (read == Received::end) return read;
    if (read == Received::nothing) break;
    result = read;
    std::size_t used = 0;
    for (; in_bytes_ - used >= kControlRecordBytes; used += kControlRecordBytes) {
      const auto record =
          decode_control_record(std::span<const std::byte, kControlRecordBytes>(in_.data() + used, kControlRecordBytes));
      if (!record) {
        sockets_.on_damage(socket(), "sent a corrupt control record");
        return Received::end;
      }
      on_record(*record);
    }
    socket().damaged_in_a_row = 0;
    in_bytes_ -= used;
    std::memmove(in_.data(), in_.data() + used, in_bytes_);
  }
  return result;
}

}  // namespace shoal::tcp
