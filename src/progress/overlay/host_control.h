// HostControl: control messages between hosts, as one rank of a host sees them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "src/progress/overlay/keeper_role.h"
#include "src/progress/overlay/known_facts.h"
#include "src/progress/overlay/message.h"
#include "src/progress/overlay/neighbour_links.h"
#include "src/progress/overlay/overlay_actions.h"

namespace shoal {

/// Each rank has one. The keeper's HostControl holds the connections. Those of the other ranks remember what passes over the
/// board, so that each of them can become the next keeper. The board of the host counts as a connection: a message that is new
/// goes to all connections but the one that it came from, and a new connection begins with all that is known. So no message is
/// lost with a host or a keeper: see README.md.
///
/// The owner reports what happens and then does actions(). It calls look() before it reports anything else, at each change of
/// the claim, and at next_time() at the latest. No sockets, no threads, and it reads no clock. Thread rule: one thread at a
/// time.
class HostControl {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Options {
    Time::duration lost_after = std::chrono::seconds(30);  ///< SHOAL_LOST_AFTER
    std::uint32_t abort_kind = 1;  ///< Notice::kind of aborts: of each communicator only the first is flooded
  };
  /// How long farewells and goodbyes are collected before they are sent: the ranks of a job end at about the same time, and
  /// their messages are joined.
  static constexpr std::chrono::milliseconds kCollect{5};

  /// `table` outlives it. `rank`: of this process, in the job.
  HostControl(const HostTable& table, int rank, const Options& options, Time now);

  /// The owner does them, and clears them, before it calls any other member.
  [[nodiscard]] OverlayActions& actions() noexcept { return actions_; }
  [[nodiscard]] Time next_time() const noexcept;
  [[nodiscard]] bool is_keeper() const noexcept { return role_.is_keeper(); }
  [[nodiscard]] const KnownFacts& facts() const noexcept { return facts_; }
  /// Ascending.
  [[nodiscard]] std::vector<int> connected_hosts() const { return links_.up(); }

  // What happens on this host.
  /// Takes in which rank the board names as the keeper, and does all work that is due at `now`.
  void look(const KeeperClaim& claim, Time now);
  /// A rank of this host has written `message` to the board: another rank, or this one of its own accord (what actions() asked
  /// this rank to publish is not reported). Returns the part that is new to this rank; nothing where it is a duplicate.
  std::optional<OverlayMessage> on_board(const OverlayMessage& message, Time now);
  /// A process of this host has ended, and all that it wrote to the board has been read. `how`: for the reports. Nothing
  /// happens where it has said goodbye, or where its end is known.
  void on_process_ended(int rank, std::span<const std::byte> how, Time now);
  /// Sends what is still being collected: this process is about to end.
  void flush();

  // What happens on connections. This rank accepts a connection unless redirect() names the rank that it is to go to. When a
  // second connection to the same host replaces the first, the owner reports nothing more about the first.
  [[nodiscard]] std::optional<int> redirect() const noexcept;
  void on_connected(const Endpoint& peer);
  // See NeighbourLinks.
  void on_lost(const Endpoint& peer, Time::duration silent_for, Time now);
  void on_refused(const Endpoint& peer, Time now) { links_.on_refused(peer, now, actions_); }
  void on_silent(const Endpoint& peer, Time now) { links_.on_silent(peer, now, actions_); }
  void on_unanswered(const Endpoint& peer, Time now) { links_.on_unanswered(peer, now, actions_); }
  void on_redirected(const Endpoint& peer, int keeper, Time now) { links_.on_redirected(peer, keeper, now, actions_); }
  /// False where the bytes are no message: the connection is to be closed.
  bool on_message(int from, std::span<const std::byte> bytes, Time now);

 private:
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;

  static constexpr int kBoard = -1;  ///< as a source of messages

  // A message from `from`, a host or kBoard.
  void take(int from, const Notice& notice, Time now);
  void take(int from, const RankFacts& facts, Time now);
  void take(int from, const RoutedMessage& message, Time now);

  /// Passes on facts that are new: deaths at once, farewells and goodbyes after kCollect.
  void pass_on(int from, RankFacts facts, Time now);
  /// `ranks` have died or left; the connections follow.
  void on_ends(const RankRuns& ranks, Time now);
  void flood(int from, const OverlayMessage& message);
  void send(int host, const OverlayMessage& message);
  void become_keeper(Time now);
  /// Reports the ranks of hosts that cannot be reached as dead.
  void on_dead_hosts(const std::vector<int>& hosts, Time now);

  const HostTable& table_;
  const int rank_;
  const int host_;
  const Options options_;
  KnownFacts facts_;
  KeeperRole role_;
  NeighbourLinks links_;
  OverlayActions actions_;
  bool was_keeper_ = false;
  Time beat_at_ = Time::max();
  Time collected_until_ = Time::max();
  std::vector<RankFacts> for_hosts_;  // collected, to be sent
  std::vector<RankFacts> for_board_;  // collected, to be published: those that came from other hosts
};

}  // namespace shoal
