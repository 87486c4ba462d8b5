// NeighbourLinks: the connections of a host with others, and the ends of hosts that can no longer be reached.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <vector>

#include "src/progress/overlay/known_facts.h"
#include "src/progress/overlay/overlay_actions.h"

namespace shoal {

/// A host is connected with the keepers of its neighbours. When the connection to a keeper ends, this class tries the other
/// ranks of that host, one after the other, until one accepts. A host has died when all its ranks have refused a connection, or
/// when its system has been silent for `lost_after`. After the last refusal kGrace goes by first: the news that these ranks
/// have left in order may be on its way.
///
/// Reads no clock. Thread rule: one thread at a time.
class NeighbourLinks {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::milliseconds kGrace{100};
  /// A rank that names a keeper which has ended is asked again after this time.
  static constexpr std::chrono::milliseconds kRetry{20};

  /// `facts` outlives it.
  NeighbourLinks(const KnownFacts& facts, Time::duration lost_after) : facts_(facts), lost_after_(lost_after) {}

  // Each call reports what has happened, and appends what is to be done to `out`.
  /// `hosts` are the neighbours now.
  void want(const std::vector<int>& hosts, Time now, OverlayActions& out);
  /// False where the connection is not wanted: the host has ended.
  bool on_connected(const Endpoint& peer, OverlayActions& out);
  /// It had not answered for `silent_for`.
  void on_lost(const Endpoint& peer, Time::duration silent_for, Time now, OverlayActions& out);
  /// The system of `peer` has answered that no process listens there.
  void on_refused(const Endpoint& peer, Time now, OverlayActions& out);
  /// The system of `peer` has not answered in the time that a connection may take.
  void on_silent(const Endpoint& peer, Time now, OverlayActions& out);
  /// The system of `peer` has answered in that time, but not its process, which may be stopped.
  void on_unanswered(const Endpoint& peer, Time now, OverlayActions& out);
  /// `peer` has answered that rank `keeper` is the keeper of its host.
  void on_redirected(const Endpoint& peer, int keeper, Time now, OverlayActions& out);
  /// Returns the hosts that have died.
  std::vector<int> on_time(Time now, OverlayActions& out);
  [[nodiscard]] Time next_time() const noexcept;
  /// Forgets the hosts that have ended.
  void drop_ended(OverlayActions& out);
  /// Ends all connections.
  void close(OverlayActions& out);

  [[nodiscard]] bool is_up(int host) const;
  /// Hosts with a connection, ascending.
  [[nodiscard]] std::vector<int> up() const;

 private:
  struct Link {
    int rank = -1;  // connected, or being tried
    bool up = false;
    Time silent_since{};       // while it is not up: the host has not answered since
    std::vector<int> refused;  // ranks that have refused since it was last up
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
