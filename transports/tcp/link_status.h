// Whether a link is open, and why it has ended.
#pragma once

#include <chrono>
#include <string>
#include <utility>

#include <shoal/status.h>

namespace shoal::tcp {

/// A link is closed until open(), then open, then closing: nothing is sent any more, what has arrived is still delivered. It
/// ends when status() is not ok any more. Holds what is known about the peer, for that status. A plain value.
class LinkStatus {
 public:
  using Clock = std::chrono::steady_clock;

  /// `address`: where the peer was reached, for messages.
  LinkStatus(int peer, std::string address) : peer_(peer), address_(std::move(address)) {}

  [[nodiscard]] int peer() const noexcept { return peer_; }
  /// ok, or why the link has ended.
  [[nodiscard]] const Status& status() const noexcept { return status_; }
  [[nodiscard]] bool has_ended() const noexcept { return !status_.ok(); }
  /// Closing or ended.
  [[nodiscard]] bool closing() const noexcept { return closing_; }
  [[nodiscard]] Clock::time_point closing_since() const noexcept { return closing_since_; }
  /// The peer has sent its close notice.
  [[nodiscard]] bool peer_has_left() const noexcept { return peer_has_left_; }
  /// The peer has left, or cannot be reached any more.
  [[nodiscard]] bool peer_is_gone() const noexcept { return peer_has_left_ || peer_is_lost_; }
  /// The peer is gone, without a close notice.
  [[nodiscard]] bool peer_has_failed() const noexcept { return !peer_has_left_ && (closing_ || peer_is_lost_); }

  void open() noexcept { closing_ = false; }
  void set_address(std::string address) { address_ = std::move(address); }
  void start_closing(Clock::time_point now) noexcept {
    closing_ = true;
    closing_since_ = now;
  }
  /// Ends the link; the first reason counts.
  void end(Status reason);
  /// Ends it for what is known about the peer.
  void end_by_peer();

  void note_peer_left() noexcept { peer_has_left_ = true; }
  /// The peer cannot be reached any more, because of `why`.
  void note_peer_lost(const std::string& why, Clock::time_point now);
  /// An errno value, or 0, with which a socket has failed; the first one counts.
  void note_error(int error) noexcept {
    if (error_ == 0) error_ = error;
  }
  /// "sent a corrupt tile header": what the peer did before its connection was given up.
  void note_trouble(std::string what) { trouble_ = std::move(what); }
  /// A connection is lost. `since`: start of the silence of the peer's host; zero: it answers.
  void note_silence(Clock::time_point since) noexcept {
    if (silent_since_ == Clock::time_point{}) silent_since_ = since;
  }
  /// A lost connection is replaced.
  void note_repair() noexcept {
    error_ = 0;
    trouble_.clear();
    silent_since_ = {};
  }

  /// peer_failed: "rank 3 (10.0.0.3:4711) has not answered for 30.0 s: ...".
  [[nodiscard]] Status silent_for(std::chrono::milliseconds time) const;
  /// peer_failed: "rank 3 (10.0.0.3:4711)" and `what`.
  [[nodiscard]] Status peer_failed(const std::string& what) const;

 private:
  int peer_;
  std::string address_;
  Status status_;
  bool closing_ = true;
  Clock::time_point closing_since_{};
  bool peer_has_left_ = false;
  bool peer_is_lost_ = false;
  int error_ = 0;
  std::string trouble_;
  Clock::time_point silent_since_{};
};

}  // namespace shoal::tcp
