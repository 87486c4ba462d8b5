// OverlayControl: control messages to and from ranks of other hosts, through the keepers of the hosts.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <shoal/status.h>

#include "src/base/descriptor.h"
#include "src/communicator/overlay/host_board.h"
#include "src/communicator/overlay/host_keeper.h"
#include "src/progress/far_control.h"
#include "src/progress/overlay/host_table.h"
#include "src/progress/overlay/message.h"
#include "src/topology/topology.h"
#include "transports/tcp/keeper_sockets.h"

namespace shoal {

/// The hosts of the overlay: ranks of a node that share memory and see the ends of each other's processes; else each rank is a
/// host of its own. `sees_end`: by rank, whether its peers see its end.
HostTable control_hosts(const Topology& topology, bool shares_memory, const std::vector<bool>& sees_end);

/// A message for a whole communicator is flooded with the set of its ranks; ranks outside of the set drop it. A message for
/// single ranks goes to each of them by itself, as do reports of waits in communicators of up to kFewReceivers ranks. What
/// arrives is kept until the driver reads it, or wakes the driver.
class OverlayControl final : public FarControl {
 public:
  static constexpr std::size_t kFewReceivers = 16;
  /// A driver that leaves so many messages unread loses the ranks of all other hosts.
  static constexpr std::size_t kMostUnread = 65536;

  /// `board` is null where this rank is the only one of its host. `addresses`: of the sockets of all ranks. Errors: those of
  /// HostKeeper::start().
  static Result<std::unique_ptr<OverlayControl>> start(const HostTable& table, int rank, std::chrono::milliseconds lost_after,
                                                       std::unique_ptr<tcp::KeeperSockets> sockets,
                                                       std::vector<std::string> addresses,
                                                       std::unique_ptr<shm::HostMemory> memory);
  /// See HostKeeper.
  Status wait_connected(ConnectDeadline time_limit) { return keeper_->wait_connected(std::move(time_limit)); }

  bool poll(std::vector<ControlMessage>& messages) override;
  void read_now() override { keeper_->read_now(); }
  [[nodiscard]] bool due() const noexcept override { return due_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool pending() const noexcept override { return false; }
  void send(const std::span<const int>* ranks, const OutgoingControl& message) override;
  void finish(std::chrono::steady_clock::time_point deadline) override { keeper_->finish(deadline); }
  [[nodiscard]] int wait_fd() const noexcept override { return event_.get(); }
  bool prepare_wait() override;
  void finish_wait(bool readable) override;
  void leave_to_parent() noexcept override { left_to_parent_ = true; }  // the HostKeeper closes its sockets itself
  [[nodiscard]] std::size_t memory_bytes() const noexcept override { return keeper_->memory_bytes(); }

 private:
  OverlayControl(const HostTable& table, int rank);

  /// All ranks of the job where `receivers` is empty.
  [[nodiscard]] std::vector<std::byte> with_receivers(const RankRuns& receivers, std::span<const std::byte> payload) const;
  /// The payload without the set of receivers; nothing where this rank is not one of them.
  [[nodiscard]] std::optional<std::vector<std::byte>> own_payload(std::span<const std::byte> payload) const;
  // By the thread of the HostKeeper, or in read_now().
  void deliver(const OverlayMessage& message);
  void deliver(const RankFacts& facts, std::vector<ControlMessage>& out) const;
  /// All ranks of other hosts are lost to this one.
  void add_deaths(const std::string& why, std::vector<ControlMessage>& out) const;
  [[nodiscard]] bool is_far(int rank) const { return table_.host_of(rank) != host_; }

  const HostTable table_;
  const int rank_;
  const int host_;
  Descriptor event_;  // wakes the driver
  std::uint64_t notices_ = 0;
  bool left_to_parent_ = false;
  std::atomic<bool> due_{false};     // inbox_ is not empty
  std::atomic<bool> sleeps_{false};  // the driver does, or is about to
  std::mutex inbox_mutex_;
  std::vector<ControlMessage> inbox_;
  bool overfull_ = false;               // messages have been lost
  std::unique_ptr<HostKeeper> keeper_;  // last: its thread uses the rest
};

}  // namespace shoal
