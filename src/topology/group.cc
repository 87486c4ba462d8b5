#include "src/topology/group.h"

#include <utility>

#include <fmt/format.h>

namespace shoal {
namespace {

constexpr std::size_t kMostPlaces = 8;  // members of a group that a report lists

}  // namespace

Group Group::whole(int rank, Topology topology) {
  Group group{kWhole, rank, {}, std::move(topology), {}};
  for (int member = 0; member < group.topology.ranks(); ++member) group.members.push_back(member);
  return group;
}

Group Group::subset(std::span<const int> ranks, std::uint32_t made_before) const {
  Group group;
  for (const int member : ranks) {
    if (member == rank) group.rank = static_cast<int>(group.members.size());
    group.members.push_back(members[static_cast<std::size_t>(member)]);
  }
  group.name = name.child(ranks, made_before);
  group.id = group.name.short_form();
  group.topology = topology.restricted_to(ranks);
  return group;
}

std::string Group::in_words() const {
  std::string text = fmt::format(" of communicator {:x} ({} ranks", id, members.size());
  for (std::size_t i = 0; id != 0 && i < members.size() && i < kMostPlaces; ++i)
    text += fmt::format("{}{}", i == 0 ? ": " : ", ", members[i]);
  return text + (id != 0 && members.size() > kMostPlaces ? ", ...)" : ")");
}

std::string Group::name_of(int member) const {
  const int job_rank = members[static_cast<std::size_t>(member)];
  return job_rank == member ? fmt::format("rank {}", member) : fmt::format("rank {} (rank {} of the job)", member, job_rank);
}

}  // namespace shoal
