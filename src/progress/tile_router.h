// TileRouter: the links of a process, and which communicator the tiles at their heads are for.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "src/progress/client_directory.h"
#include "src/progress/control_messages.h"
#include "src/progress/early_records.h"
#include "src/progress/progress_client.h"
#include "src/progress/spill_queue.h"
#include "src/progress/wire.h"
#include "src/topology/group_name.h"
#include "transports/transport.h"

namespace shoal {

/// Head-of-line handling: see "Several communicators" in README.md. Ranks are those of the job. Thread rule: the driver.
class TileRouter {
 public:
  /// `links`: one to every other of `ranks`, the i-th made by transport `transport_of_link[i]`. `spills`: whether tiles that
  /// block other communicators are moved to spill queues. All arguments outlive it.
  TileRouter(std::span<const std::unique_ptr<Transport>> transports, std::span<const std::unique_ptr<Link>> links,
             std::span<const std::uint32_t> transport_of_link, int ranks, bool spills, ClientDirectory& clients,
             EarlyRecords& early, ControlMessages& control);

  /// The wire to `rank`; null for this rank itself.
  [[nodiscard]] Wire* wire_to(int rank) noexcept;
  /// Asks the transports on which links tiles have arrived. To be called after their progress().
  void note_arrivals();
  /// The wires at whose heads tiles stand, or whose spill queues hold some; all wires of transports that do not report
  /// arrivals. Looks at each of them.
  std::span<Wire* const> active();

  /// A tile of another communicator is at the head of a link that a client has checked.
  void note_stray() noexcept { stray_ = true; }
  [[nodiscard]] bool has_stray() const noexcept { return stray_; }
  /// Handles the tiles at the heads of the links that their communicators could not use. `running`: the clients with calls in
  /// flight; `quiet`: nothing else has moved.
  bool route(std::span<ProgressClient* const> running, bool quiet);

  /// Queues a control record about the communicator that has `number` for the process at the other end of `wire`. Which side
  /// has given the number: see LinkControl.
  void send_control(Wire& wire, std::uint32_t number, LinkControl what) { records_.push_back({&wire, number, what}); }
  /// Records wait for room on links.
  [[nodiscard]] bool has_records() const noexcept { return !records_.empty(); }
  /// Sends the records that the links take.
  bool send_records();
  /// Sends the peer at once, before the first tile with `number`, the name of the communicator. False where the link has no
  /// room.
  [[nodiscard]] bool bind(Wire& wire, std::uint32_t number, const GroupName& name);

  /// `client` is new: it receives what its peers have sent already.
  void attach(ProgressClient& client);
  /// `client` has ended. `others`: there are other clients, so that its peers have to know.
  void detach(ProgressClient& client, bool others);

 private:
  struct Record {
    Wire* wire = nullptr;
    std::uint32_t number = 0;
    LinkControl what = LinkControl::pause;
  };

  void set_active(Wire& wire);
  [[nodiscard]] bool reports_arrivals(const Wire& wire) const noexcept { return reports_arrivals_[wire.transport]; }
  bool stands_in_the_way(Wire& wire, std::span<ProgressClient* const> running, const ProgressClient* owner, bool quiet) const;
  void spill(Wire& wire, BoundNumber& bound, const Arrival& arrival);
  void on_control(Wire& wire, const TileHeader& header);
  void on_bind(Wire& wire, std::uint32_t number, const GroupName& name);
  void on_unbind(Wire& wire, std::uint32_t number);
  void take_early_tiles(Wire& wire, ProgressClient& client);
  void forget_number(Wire& wire, std::uint32_t number);
  void drop_spills(Wire& wire, std::uint32_t number);

  std::span<const std::unique_ptr<Transport>> transports_;
  const bool spills_;
  ClientDirectory& clients_;
  EarlyRecords& early_;
  ControlMessages& control_;
  std::vector<Wire> wires_;             // parallel to the links
  std::vector<int> wire_of_rank_;       // -1 for the own rank
  std::vector<bool> reports_arrivals_;  // by transport
  std::vector<Wire*> active_;
  std::vector<Link*> arrivals_;  // scratch of note_arrivals()
  bool stray_ = false;
  std::vector<Record> records_;  // to send when the links have room
};

}  // namespace shoal
