#include "src/progress/control.h"

#include <chrono>
#include <string>
#include <utility>

#include "src/progress/remote_control.h"

namespace shoal {
namespace {

using Kind = ControlPlane::Message::Kind;

constexpr auto kFinishPatience = std::chrono::milliseconds(100);

}  // namespace

ControlPlane::ControlPlane(std::unique_ptr<Transport> transport, std::vector<std::unique_ptr<Link>> links)
    : far_(std::make_unique<RemoteControl>(std::move(transport), std::move(links))) {}

bool ControlPlane::poll(std::vector<Message>& messages) {
  const bool far = far_ != nullptr && far_->poll(messages);
  return (local_ != nullptr && local_->poll(messages)) || far;
}

void ControlPlane::send(Kind kind, const GroupName& group, const std::span<const int>* ranks,
                        std::span<const std::byte> payload) {
  const OutgoingControl message{kind, group, std::make_shared<const std::vector<std::byte>>(payload.begin(), payload.end())};
  if (local_ != nullptr) local_->send(ranks, message);
  if (far_ != nullptr) far_->send(ranks, message);
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
  if (far_ != nullptr) far_->finish(deadline);
}

void ControlPlane::leave_to_parent() noexcept {
  if (local_ != nullptr) local_->leave_to_parent();
  if (far_ != nullptr) far_->leave_to_parent();
}

}  // namespace shoal
