// NeighbourLinks: the connections of a host with others, and the ends of hosts that can no longer be reached.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <vector>

#include "src/progress/overlay/known_facts.h"
#include "src/progress/overlay/overlay_actions.h"

namespace shoal {

/// A host is reached through its keeper, and nobody says which rank that is: where a connection ends, the next ranks of that
/// host are tried. A host all of whose ranks refuse a connection has died; so has one that has been silent for `lost_after`.
/// Between the last refusal and the verdict kGrace goes by, in which news may come that its ranks have left in order.
///
/// Reads no clock. Thread rule: one thread at a time.
class NeighbourLinks {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::milliseconds kGrace{100};
  static constexpr std::chrono::milliseconds kRetry{20};  ///< until a rank is asked again that does not know the keeper yet

  /// `facts` outlives it.
  NeighbourLinks(const KnownFacts& facts, Time::duration lost_after) : facts_(facts), lost_after_(lost_after) {}

  // What has happened. The actions are appended to `out`.
  /// This host is to be connected with `hosts`.
  void want(const std::vector<int>& hosts, Time now, OverlayActions& out);
  /// False where the connection is not wanted: the host has ended.
  bool on_connected(const Endpoint& peer, OverlayActions& out);
  /// `silent`: it had not answered for `lost_after`. True where the host is no longer connected.
  bool on_lost(const Endpoint& peer, bool silent, Time now, OverlayActions& out);
  /// No process listens there any more.
  void on_refused(const Endpoint& peer, Time now, OverlayActions& out);
  /// Its system has not answered in the time that a connection may take.
  void on_silent(const Endpoint& peer, Time now, OverlayActions& out);
  /// Its system has, but not the process: it may be stopped.
  void on_unanswered(const Endpoint& peer, Time now, OverlayActions& out);
  /// It is not the keeper; `keeper` is.
  void on_redirected(const Endpoint& peer, int keeper, Time now, OverlayActions& out);
  /// Returns the hosts that have died.
  std::vector<int> on_time(Time now, OverlayActions& out);
  [[nodiscard]] Time next_time() const noexcept;
  /// Forgets the hosts that have ended. Returns those that were connected.
  std::vector<int> drop_ended(OverlayActions& out);
  /// Ends all connections.
  void close(OverlayActions& out);

  [[nodiscard]] bool is_up(int host) const;
  /// Hosts with a connection, ascending.
  [[nodiscard]] std::vector<int> up() const;

 private:
  struct Link {
    int rank = -1;  // connected, or being tried
    bool up = false;
    Time silent_since{};       // or earlier, while it is not up
    std::vector<int> refused;  // ranks that have refused since then
    Time retry_at = Time::max();
    Time dead_at = Time::max();
  };
  /// Null where `peer` is not the process being tried.
  Link* tried(const Endpoint& peer);
  /// Tries the rank of the host after `after` that has not refused.
  void try_next(int host, Link& link, int after, Time now, OverlayActions& out);

  const KnownFacts& facts_;
  const Time::duration lost_after_;
  std::map<int, Link> links_;  // by host
};

}  // namespace shoal
