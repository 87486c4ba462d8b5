#include "src/progress/control.h"

#include <chrono>
#include <string>

namespace shoal {
namespace {

using Kind = ControlPlane::Message::Kind;

constexpr auto kFinishPatience = std::chrono::milliseconds(100);

}  // namespace

bool ControlPlane::poll(std::vector<Message>& messages) {
  const bool remote = remote_.poll(messages);
  return (local_ != nullptr && local_->poll(messages)) || remote;
}

void ControlPlane::send(Kind kind, const GroupName& group, const std::span<const int>* ranks,
                        std::span<const std::byte> payload) {
  const OutgoingControl message{kind, group, std::make_shared<const std::vector<std::byte>>(payload.begin(), payload.end())};
  if (local_ != nullptr) local_->send(ranks, message);
  remote_.send(ranks, message);
}

void ControlPlane::send_abort(const GroupName& group, std::span<const int> ranks, const Status& cause) {
  const std::string payload = std::string(1, static_cast<char>(cause.code())) + cause.message();
  send(Kind::abort, group, &ranks, std::as_bytes(std::span(payload)));
}

void ControlPlane::send_farewell(const GroupName& group, std::span<const int> ranks, std::span<const std::byte> history) {
  send(Kind::farewell, group, &ranks, history);
}

void ControlPlane::send_wait(const GroupName& group, std::span<const int> ranks, std::span<const std::byte> what) {
  send(Kind::waits, group, &ranks, what);
}

void ControlPlane::send_calls(const GroupName& group, int rank, std::span<const std::byte> history) {
  const std::span<const int> ranks(&rank, 1);
  send(Kind::calls, group, &ranks, history);
}

void ControlPlane::send_goodbye() { send(Kind::goodbye, {}, nullptr, {}); }

void ControlPlane::finish() {
  const auto deadline = std::chrono::steady_clock::now() + kFinishPatience;
  if (local_ != nullptr) local_->finish(deadline);
  remote_.finish(deadline);
}

void ControlPlane::leave_to_parent() noexcept {
  if (local_ != nullptr) local_->leave_to_parent();
  if (transport() != nullptr) transport()->leave_to_parent();
}

}  // namespace shoal
