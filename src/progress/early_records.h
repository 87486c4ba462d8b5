// EarlyRecords: what peers have sent for communicators that this process has not made yet.
#pragma once

#include <cstddef>
#include <map>
#include <unordered_map>

#include <shoal/status.h>

#include "src/progress/control.h"
#include "src/progress/progress_client.h"
#include "src/topology/group_name.h"

namespace shoal {

/// Keeps their control messages, and counts the bytes of their tiles. When a peer sends more than there is room for, the last
/// communicator that it sent for fails: held back on the link, its tiles would block all other communicators as well. Ranks
/// are those of the job. Thread rule: the driver.
class EarlyRecords {
 public:
  /// `control` may be null.
  EarlyRecords(int rank, std::size_t room_bytes, ControlPlane* control)
      : rank_(rank), room_bytes_(room_bytes), control_(control) {}

  /// ok, unless nothing more can be recorded, not even refusals.
  [[nodiscard]] const Status& overflow() const noexcept { return overflow_; }
  /// Room for a tile of `bytes`. False where there is none.
  bool take_room(std::size_t bytes) noexcept;
  /// For `tiles` with `bytes` in all.
  void give_room_back(std::size_t bytes, std::size_t tiles) noexcept { used_bytes_ -= bytes + tiles * kRecordBytes; }

  void keep(const ControlPlane::Message& message);
  /// There is no room for what `rank` sends. The communicator fails on the sender now, and here as soon as it is made.
  void refuse(int rank, const GroupName& name);
  /// `client` has been made: passes on what has been kept for it.
  void pass_to(ProgressClient& client);

 private:
  struct Early {
    Status abort;
    std::map<int, ControlPlane::Message> left;   // by rank, its close notice
    std::map<int, ControlPlane::Message> waits;  // by rank, the latest
    std::size_t bytes = 0;                       // of used_bytes_
  };
  static constexpr std::size_t kRecordBytes = 256;  // estimate, for each communicator, tile and message
  static constexpr std::size_t kMostRefused = 1 << 16;

  [[nodiscard]] bool has_room(std::size_t bytes) const noexcept { return bytes <= room_bytes_ - used_bytes_; }

  const int rank_;
  const std::size_t room_bytes_;
  ControlPlane* const control_;
  std::unordered_map<GroupName, Early, GroupName::Hash> early_;
  std::size_t used_bytes_ = 0;  // of early_, and of tiles
  std::size_t refused_ = 0;     // entries of early_ that refuse() has made
  Status overflow_;
};

}  // namespace shoal
