// Group: the ranks of one communicator.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/topology/group_name.h"
#include "src/topology/topology.h"

namespace shoal {

/// Which ranks of the job a communicator consists of.
struct Group {
  std::uint32_t id = 0;      ///< names the communicator in reports: GroupName::short_form()
  int rank = 0;              ///< own, within the group
  std::vector<int> members;  ///< the job's rank of each rank
  Topology topology;         ///< of the members
  GroupName name;            ///< names it between ranks: the same on all of them, another for each communicator
  bool is_meeting = false;   ///< a group of shrink(): a member that leaves the job before the first call closes it

  /// All ranks of a job; `rank` is this one.
  static Group whole(int rank, Topology topology);
  static constexpr std::uint32_t kWhole = 0;  ///< its `id`
  /// The `members` of this group (its ranks, this rank among them) in the order of their new ranks. Every member works out the
  /// same name alone, from this group's, the list, and `made_before`: how many groups of this list it has made before.
  [[nodiscard]] Group subset(std::span<const int> ranks, std::uint32_t made_before) const;

  // For reports.
  /// "rank 2", with its rank in the job where that is another number.
  [[nodiscard]] std::string name_of(int member) const;
  /// " of communicator 0 (4 ranks)".
  [[nodiscard]] std::string in_words() const;
};

}  // namespace shoal
