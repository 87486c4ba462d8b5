// ControlQueue: the control messages that one peer has not taken yet.
#pragma once

#include <algorithm>
#include <cstddef>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <shoal/status.h>

#include "src/progress/control_message.h"
#include "src/topology/group_name.h"

namespace shoal {

/// A message on its way, and its bytes, which it shares with the queues of other receivers.
struct OutgoingControl {
  using Payload = std::shared_ptr<const std::vector<std::byte>>;
  ControlMessage::Kind kind = ControlMessage::Kind::abort;
  GroupName group;
  Payload payload;

  [[nodiscard]] std::span<const std::byte> bytes(std::size_t most) const {
    return std::span(*payload).first(std::min(payload->size(), most));
  }
};

/// Of messages that a newer one replaces (waits, calls of a communicator) it keeps only the newest. Thread rule: the driver.
class ControlQueue {
 public:
  /// A peer with more of them counts as dead.
  static constexpr std::size_t kMost = 4096;

  /// False where the queue is full.
  bool push(OutgoingControl message) {
    if (message.kind == ControlMessage::Kind::waits || message.kind == ControlMessage::Kind::calls) {
      const auto earlier = std::ranges::find_if(
          messages_, [&](const OutgoingControl& each) { return each.kind == message.kind && each.group == message.group; });
      if (earlier != messages_.end()) {
        earlier->payload = std::move(message.payload);
        return true;
      }
    }
    if (messages_.size() == kMost) return false;
    messages_.push_back(std::move(message));
    return true;
  }
  [[nodiscard]] bool empty() const noexcept { return messages_.empty(); }
  [[nodiscard]] std::size_t size() const noexcept { return messages_.size(); }
  [[nodiscard]] OutgoingControl& front() { return messages_.front(); }
  void pop() { messages_.pop_front(); }
  void clear() { messages_.clear(); }

  /// Why a peer whose queue is full counts as dead.
  [[nodiscard]] static Status unread(int rank) {
    return {StatusCode::peer_failed,
            fmt::format("rank {} has left {} control messages unread; is its process stopped?", rank, kMost)};
  }

 private:
  std::list<OutgoingControl> messages_;  // most queues stay empty: an empty deque would take half a kilobyte
};

}  // namespace shoal
