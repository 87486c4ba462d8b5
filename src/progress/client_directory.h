// ClientDirectory: the communicators of a process, found by their numbers and names.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <shoal/status.h>

#include "src/progress/progress_client.h"
#include "src/topology/group_name.h"

namespace shoal {

/// Thread rule: the driver; next_number() and made_before() from any thread.
class ClientDirectory {
 public:
  /// A number for one more communicator of this process, for its own tiles. Each is given out once, so no number means two
  /// communicators. kCommunicatorLimit where there is none left.
  std::uint32_t next_number() noexcept;
  /// How many groups of `members` (ranks of the job) have been asked for before.
  std::uint32_t made_before(const std::vector<int>& members) {
    const std::scoped_lock lock(groups_mutex_);
    return groups_made_[members]++;
  }

  /// Errors: unsupported, where all numbers have been given out; internal, where the communicator's name is in use.
  Status add(ProgressClient& client);
  void remove(ProgressClient& client);
  [[nodiscard]] std::span<ProgressClient* const> all() const noexcept { return clients_; }
  /// There is one client: no other uses the links.
  [[nodiscard]] bool alone() const noexcept { return clients_.size() == 1; }
  /// Null where there is none with this number, of this process.
  [[nodiscard]] ProgressClient* find(std::uint32_t number) const noexcept;
  [[nodiscard]] ProgressClient* find(const GroupName& name) const noexcept;
  /// The communicator with this name has ended here: tiles that still arrive for it are dropped.
  [[nodiscard]] bool has_ended(const GroupName& name) const { return ended_.contains(name); }

 private:
  // When a member sends its first tile after the name has been forgotten, the tile counts as one of a communicator that is
  // still to be made; that only takes room.
  static constexpr std::size_t kMostEnded = 1 << 16;

  std::vector<ProgressClient*> clients_;
  std::unordered_map<std::uint32_t, ProgressClient*> by_number_;
  std::unordered_map<GroupName, ProgressClient*, GroupName::Hash> by_name_;
  std::unordered_set<GroupName, GroupName::Hash> ended_;
  std::deque<GroupName> ended_in_order_;
  std::atomic<std::uint32_t> numbers_given_{0};
  std::mutex groups_mutex_;
  std::map<std::vector<int>, std::uint32_t> groups_made_;
};

}  // namespace shoal
