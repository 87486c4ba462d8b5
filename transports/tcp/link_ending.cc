// TcpLink: its end, caused by the peer or by this rank.
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "transports/tcp/link.h"
#include "transports/tcp/reactor.h"

namespace shoal::tcp {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// A link whose remaining bytes are all in its rings and the kernel reports its end after this time, even if the caller takes
// none.
constexpr milliseconds kUntakenPatience{300};
// How often the close notice is offered to a kernel that is out of memory.
constexpr int kGoodbyeTries = 8;

// What the kernel holds for the socket: SIOCINQ to be read, SIOCOUTQ for the other side to acknowledge.
std::size_t bytes_in_kernel(const Flow& flow, unsigned long which) noexcept {
  int bytes = 0;
  return ::ioctl(flow.socket.get(), which, &bytes) == 0 ? static_cast<std::size_t>(bytes) : 0;
}

}  // namespace

// For a time when lost sockets are not replaced any more. Without the socket for control records, no tile would be
// acknowledged.
bool TcpLink::is_ending() const noexcept {
  const auto lost = [](const Flow& flow) { return flow.hung_up || flow.down; };
  return std::any_of(flows_.begin(), flows_.end() - 1, lost) || (!left_ && lost(flows_.back()));
}

// Nothing is sent any more, what has arrived is still delivered.
void TcpLink::start_closing() {
  if (closing_) return;
  closing_ = true;
  watched_since_ = Clock::now();
  watched_bytes_ = 0;
  for (Flow& flow : flows_) flow.ended |= flow.down;
  reactor_->forget_lost(*this);
  if (std::all_of(tile_flows().begin(), tile_flows().end(), [](const Flow& f) { return f.ended; })) set_broken();
  reactor_->note_closing();
}

// The end of a socket shows that it has delivered everything. Until then lost packets may be retransmitted, after a time that
// grows with the length of the outage. Where the caller makes no room, the end does not show.
bool TcpLink::watch_closing() {
  const auto now = Clock::now();
  std::size_t bytes = received_bytes_;
  bool brings = false;  // data may still be in flight
  bool full = false;
  bool silent = false;
  for (const Flow& flow : tile_flows()) {
    if (flow.ended || flow.hung_up) continue;
    brings = true;
    bytes += bytes_in_kernel(flow, SIOCINQ);
    full |= !has_room(flow);
    silent |= silence_of(flow) >= shape_.lost_after;
  }
  if (bytes != watched_bytes_ || full) {
    watched_bytes_ = bytes;
    watched_since_ = now;
  }
  if (!silent && now - watched_since_ < (brings ? shape_.lost_after : kUntakenPatience)) return false;
  set_broken();
  // What the kernel holds already can still be read; after it each socket shows its end.
  for (Flow& flow : flows_) {
    if (flow.ended || flow.hung_up) continue;
    ::shutdown(flow.socket.get(), SHUT_RDWR);
    hang_up(flow);
  }
  return true;
}

void TcpLink::set_broken() {
  if (!status_.ok()) return;
  if (trouble_.empty()) {
    const std::string why = closing_error_ == 0 ? "" : ": " + std::generic_category().message(closing_error_);
    status_ = Status(StatusCode::peer_failed, fmt::format("rank {} closed the connection ({}){}", peer_, peer_address_, why));
  } else {
    status_ = Status(StatusCode::peer_failed, fmt::format("rank {} ({}) {}", peer_, peer_address_, trouble_));
  }
  reactor_->note_closing();
}

void TcpLink::stop_flow(Flow& flow) noexcept {
  if (flow.ended) return;
  flow.ended = true;
  flow.readable = false;
  if (flow.down) return;
  reactor_->forget(flow);
  if (!reactor_->in_owner()) return;
  // Unread bytes would turn the orderly end into a reset, which could overtake the last bytes that this rank has sent. Not by
  // MSG_TRUNC without a buffer: ThreadSanitizer takes that for a write to address 0 by every thread that does it.
  std::array<char, 16 << 10> unread;
  while (::recv(flow.socket.get(), unread.data(), unread.size(), MSG_DONTWAIT) > 0) {
  }
  ::shutdown(flow.socket.get(), SHUT_RDWR);
}

void TcpLink::close(Status reason) {
  if (!closing_ && reactor_->in_owner()) tell_received();  // a peer that leaves as well need not wait for the acknowledgement
  if (!closing_ && reactor_->in_owner() && words_due_ + kControlRecordBytes <= words_out_.size()) {
    say({ControlRecord::Kind::goodbye, 0, 0});
    // Without the close notice the peer takes the end for a lost connection. The kernel may be out of memory for a moment.
    for (int i = 0; i < kGoodbyeTries && words_due_ > 0; ++i) flush_words();
  }
  closing_ = true;
  for (Flow& flow : flows_) stop_flow(flow);
  reactor_->forget_lost(*this);
  if (!status_.ok()) return;
  status_ = std::move(reason);
  reactor_->note_closing();
}

void TcpLink::ask() {
  if (closing_) return;
  tell_received();
  const bool promised = sent_ == taken_ && given_up_ != taken_;
  if (!promised || forgotten_ == taken_ || left_ || gone_ || words_due_ + kControlRecordBytes > words_out_.size()) return;
  asking_ = true;
  quiet_since_ = Clock::now();
  say({ControlRecord::Kind::asks, 0, 0});
  flush_words();
}

bool TcpLink::awaits_answer(Clock::time_point now) noexcept {
  if (!asking_ || closing_ || left_ || gone_ || forgotten_ == taken_) return false;
  if (is_under_way()) quiet_since_ = now;
  return now - quiet_since_ < kLookPatience;
}

void TcpLink::ask_no_more() noexcept {
  if (!std::exchange(asking_, false)) return;
  given_up_ = taken_;
}

bool TcpLink::is_under_way() const noexcept {
  return std::any_of(flows_.begin(), flows_.end(), [](const Flow& flow) {
    return flow.down || flow.hung_up || flow.first != flow.last || flow.again != flow.again_end ||
           bytes_in_kernel(flow, SIOCOUTQ) > 0;
  });
}

}  // namespace shoal::tcp
