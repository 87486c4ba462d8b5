// Runs the same body on every rank of a group, as threads or as forked processes.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/conformance/transport_kinds.h"
#include "transports/transport.h"

namespace shoal::conformance {

struct SharedPage;

/// What the body of a test sees: one rank with its transport and its links.
/// Thread rule: used by the thread of its rank only.
class Rank {
 public:
  Rank(int rank, int size, SharedPage& page) : rank_(rank), size_(size), page_(page) {}

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  /// All ranks but this one.
  [[nodiscard]] std::vector<int> peers() const;
  [[nodiscard]] Transport& transport() const { return *transport_; }
  /// The connected link to `peer`.
  [[nodiscard]] Link& link(int peer) const;

  /// Barrier over all ranks of the group; does not use the transport.
  void barrier();
  /// Ends await_announcement() on the other ranks, which drive their transport until then. Once in a body.
  void announce();
  void await_announcement();
  /// Drives the transport until `done` returns true, and blocks on wait_fd() where the transport allows that. Each call of
  /// `done` must do all the work that is possible: as for any user of a transport, work left undone causes no wake-up.
  /// Returns false, with a test failure, after a generous time limit: a tile was lost, or a wake-up was missed.
  bool until(const std::function<bool()>& done) { return wait(done, false); }
  /// As until(), for conditions in shared windows: calls `done` once more between prepare_wait() and blocking, as users of
  /// windows must.
  bool until_window(const std::function<bool()>& done) { return wait(done, true); }

  bool send(int peer, const TileHeader& header, std::span<const std::byte> data);
  /// The next tile from `peer`; null, with a test failure, where none arrives.
  const Arrival* receive(int peer);

  /// connect() to all other ranks.
  Status connect(ConnectDeadline time_limit);
  /// Destroys links and transport.
  void close();
  /// Ends this process at once, as a crash would. Only where ranks are processes. The other ranks must not call barrier()
  /// afterwards.
  [[noreturn]] void die();

 private:
  friend void run_rank(const TransportKind&, const MakeEnd&, Rank&, bool, const std::function<void(Rank&)>&);
  bool wait(const std::function<bool()>& done, bool look_before_blocking);
  /// Polls for an action of other ranks outside the transport, which causes no wake-up.
  void drive_until(const std::function<bool()>& done);

  int rank_;
  int size_;
  SharedPage& page_;
  std::unique_ptr<Transport> transport_;
  std::vector<std::unique_ptr<Link>> links_;
};

struct GroupOptions {
  bool connect = true;         ///< connect before the body
  bool barrier_at_end = true;  ///< all ranks call barrier() before any of them closes
};

/// Runs `body` on `size` ranks; returns when all have ended. Failures of any rank fail the current test. Checks that no
/// descriptor is left open.
void run_group(const TransportKind& kind, int size, const std::function<void(Rank&)>& body, GroupOptions options = {});

/// Fails and ends the whole test program, and names the current test, where that test runs for longer than `limit`. Covers
/// threads, and forked ranks too, because each process sets its own alarm.
class Watchdog {
 public:
  explicit Watchdog(std::chrono::seconds limit);
  ~Watchdog();
  static void restart_in_child();
};

}  // namespace shoal::conformance
