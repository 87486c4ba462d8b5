// ControlPlane: the slow, always readable channel between all ranks, beside the data links: aborts, farewells, deaths.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <shoal/status.h>

#include "transports/transport.h"

namespace shoal {

/// Small messages over a Transport of its own, so that they never wait behind data.
/// Thread rule: one thread at a time (the executor's driver).
class ControlPlane {
 public:
  /// `links` are connected through `transport`; one to every other rank (none for a job of one).
  ControlPlane(int rank, std::unique_ptr<Transport> transport, std::vector<std::unique_ptr<Link>> links);

  /// Reads what has come. ok, or the first reason to close: a peer's abort (its own words) or a peer that broke its connection
  /// without a farewell (peer_failed, with its rank). `moved` says whether anything came at all.
  Status poll(bool* moved);

  /// Tells every peer that still listens why this rank closes. Best effort, never blocks for long.
  void send_abort(const Status& cause);
  /// Tells every peer that this rank leaves in order.
  void send_farewell();
  /// Whether `rank` has said farewell.
  [[nodiscard]] bool has_left(int rank) const noexcept { return left_[static_cast<std::size_t>(rank)]; }

  [[nodiscard]] Transport* transport() const noexcept { return transport_.get(); }

 private:
  struct Peer {
    std::unique_ptr<Link> link;
    bool failed = false;
  };
  void send_to_all(std::uint32_t kind, const std::string& payload);

  int rank_;
  std::unique_ptr<Transport> transport_;  // outlives the links
  std::vector<Peer> peers_;
  std::vector<bool> left_;
  bool said_last_word_ = false;
};

}  // namespace shoal
