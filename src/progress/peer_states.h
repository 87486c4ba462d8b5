// PeerStates: which ranks of the job have left it or died.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <shoal/status.h>

#include "src/progress/control.h"
#include "src/progress/progress_client.h"

namespace shoal {

/// As far as this rank knows. Thread rule: the driver.
class PeerStates {
 public:
  explicit PeerStates(int ranks) : gone_(static_cast<std::size_t>(ranks)), dead_(gone_.size()) {}

  void set_gone(int rank) { gone_[static_cast<std::size_t>(rank)] = true; }
  /// `how` is not ok. The clients learn of it in report_deaths().
  void set_dead(int rank, const Status& how) {
    dead_[static_cast<std::size_t>(rank)] = how;
    deaths_pending_ = true;
  }
  [[nodiscard]] bool is_present(int rank) const {
    const auto at = static_cast<std::size_t>(rank);
    return !gone_[at] && dead_[at].ok();
  }
  /// Tells a new client of the ranks that have left or died before.
  void report_all(ProgressClient& client) const {
    using Kind = ControlPlane::Message::Kind;
    for (std::size_t rank = 0; rank < gone_.size(); ++rank) {
      if (gone_[rank]) client.on_control(message(Kind::goodbye, rank));
      if (!dead_[rank].ok()) client.on_control(message(Kind::death, rank));
    }
  }
  /// Tells all clients of all deaths, where there are new ones.
  void report_deaths(std::span<ProgressClient* const> clients) {
    if (!std::exchange(deaths_pending_, false)) return;
    for (std::size_t rank = 0; rank < dead_.size(); ++rank) {
      for (std::size_t i = 0; i < clients.size() && !dead_[rank].ok(); ++i)
        clients[i]->on_control(message(ControlPlane::Message::Kind::death, rank));
    }
  }

 private:
  [[nodiscard]] ControlPlane::Message message(ControlPlane::Message::Kind kind, std::size_t rank) const {
    return {.kind = kind, .group = {}, .rank = static_cast<int>(rank), .status = dead_[rank], .payload = {}};
  }

  std::vector<bool> gone_;    // by rank: has sent its exit notice
  std::vector<Status> dead_;  // by rank: how it died
  bool deaths_pending_ = false;
};

}  // namespace shoal
