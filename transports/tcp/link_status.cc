#include "transports/tcp/link_status.h"

#include <system_error>

#include <fmt/format.h>

namespace shoal::tcp {

void LinkStatus::end(Status reason) {
  closing_ = true;
  if (status_.ok()) status_ = std::move(reason);
}

void LinkStatus::end_by_peer() {
  if (!trouble_.empty()) return end(peer_failed(trouble_));
  const std::string why = error_ == 0 ? "" : ": " + std::generic_category().message(error_);
  end(Status(StatusCode::peer_failed, fmt::format("rank {} closed the connection ({}){}", peer_, address_, why)));
}

void LinkStatus::note_peer_lost(const std::string& why, Clock::time_point now) {
  peer_is_lost_ = true;
  if (silent_since_ != Clock::time_point{}) {
    const std::chrono::duration<double> silent = now - silent_since_;
    trouble_ = fmt::format("has not answered for {:.1f} s", silent.count());
  }
  if (!trouble_.empty()) trouble_ = fmt::format("{}, and cannot be reached again: {}", trouble_, why);
}

Status LinkStatus::silent_for(std::chrono::milliseconds time) const {
  return peer_failed(
      fmt::format("has not answered for {:.1f} s: its host or the network is down", static_cast<double>(time.count()) / 1e3));
}

Status LinkStatus::peer_failed(const std::string& what) const {
  return {StatusCode::peer_failed, fmt::format("rank {} ({}) {}", peer_, address_, what)};
}

}  // namespace shoal::tcp
