#include "src/progress/control_messages.h"

#include <chrono>
#include <utility>

#include "src/diagnosis/straggler_detector.h"
#include "src/progress/driver_gate.h"

namespace shoal {

bool ControlMessages::poll() {
  due_ = false;
  if (plane_ != nullptr) plane_->read_now();
  const bool moved = plane_ != nullptr && plane_->poll(messages_);
  pass_on();
  return moved;
}

bool ControlMessages::read_if_due() {
  if (plane_ == nullptr || !(due_ || plane_->due())) return false;
  due_ = false;
  return plane_->poll(messages_);
}

void ControlMessages::pass_on() {
  if (messages_.empty()) return;
  for (const ControlPlane::Message& message : std::exchange(messages_, {})) pass_on(message);
}

void ControlMessages::pass_on(const ControlPlane::Message& message) {
  using Kind = ControlPlane::Message::Kind;
  if (message.kind == Kind::waits) {
    if (const auto words = StragglerDetector::parse(message.payload); words && words->sequence != StragglerDetector::kNoCall) {
      last_waits_.note(message.rank,
                       {message.group.short_form(), words->sequence, words->call, std::chrono::steady_clock::now()});
    }
  }
  if (message.kind == Kind::goodbye) {
    peers_.set_gone(message.rank);
    for (ProgressClient* client : clients_.all()) client->on_control(message);
  } else if (message.kind == Kind::death) {
    peers_.set_dead(message.rank, message.status);
  } else if (ProgressClient* client = clients_.find(message.group); client != nullptr) {
    client->on_control(message);
  } else if (!clients_.has_ended(message.group)) {
    early_.keep(message);
  }
}

bool ControlMessages::prepare_wait() {
  if (plane_ == nullptr) return true;
  due_ |= !plane_->prepare_wait() || plane_->due();
  return !due_;
}

void ControlMessages::finish_wait(std::span<const pollfd> polled) {
  if (plane_ == nullptr || plane_->wait_fd() < 0) return;
  const bool readable = is_readable(polled, plane_->wait_fd());
  plane_->finish_wait(readable);
  due_ |= readable;
}

void ControlMessages::append_wait_fd(std::vector<pollfd>& out) const {
  if (plane_ != nullptr && plane_->wait_fd() >= 0) out.push_back({plane_->wait_fd(), POLLIN, 0});
}

}  // namespace shoal
