// Groups made from this one. They share its threads and links.
#include <algorithm>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "torch_plugin/process_group/arguments.h"
#include "torch_plugin/process_group/conversions.h"
#include "torch_plugin/process_group/process_group_shoal.h"

namespace shoal::torch {

c10::intrusive_ptr<ProcessGroupShoal> ProcessGroupShoal::subgroup(const c10::intrusive_ptr<c10d::Store>& store,
                                                                  const std::vector<int>& ranks,
                                                                  c10::intrusive_ptr<Options> options) {
  check_alive();
  if (options && options->timeout.count() <= 0)
    refuse("new_group", "a timeout of " + std::to_string(options->timeout.count()) + " ms is not positive");
  Result<std::unique_ptr<Communicator>> made = communicator_->group(ranks);
  if (!made.ok()) throw_status("new_group", made.status());
  // The names of groups repeat in the next round, and an earlier round may have left its keys in the store.
  StartRound round{store, round_.number};
  if (round.number != 0)
    round.store = c10::make_intrusive<c10d::PrefixStore>("shoal/round/" + std::to_string(round.number), store);
  return c10::make_intrusive<ProcessGroupShoal>(std::move(made).value(), std::move(round), std::move(options));
}

c10::intrusive_ptr<ProcessGroupShoal::Options> ProcessGroupShoal::options_for(
    const std::vector<int>& ranks, const c10::intrusive_ptr<c10d::Backend::Options>& wanted) const {
  auto options = c10::make_intrusive<Options>(*options_);
  options->global_ranks_in_group.clear();
  const std::vector<std::uint64_t>& global = options_->global_ranks_in_group;
  for (const int rank : ranks) {
    const auto place = static_cast<std::size_t>(rank);
    options->global_ranks_in_group.push_back(place < global.size() ? global[place] : place);
  }
  if (wanted) {
    options->timeout = wanted->timeout;
    options->group_name = wanted->group_name;
    options->group_desc = wanted->group_desc;
  }
  return options;
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupShoal::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                           const std::vector<int>& ranks,
                                                           const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  if (std::find(ranks.begin(), ranks.end(), getRank()) == ranks.end()) return nullptr;
  return subgroup(store, ranks, options_for(ranks, options));
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupShoal::shrink(const std::vector<std::int64_t>& ranks_to_exclude, int /*flags*/,
                                                            const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  for (const std::int64_t rank : ranks_to_exclude) {
    if (rank < 0 || rank >= getSize()) refuse("shrink_group", "invalid rank: " + std::to_string(rank));
    if (rank == getRank())
      refuse("shrink_group", "this rank, " + std::to_string(rank) + ", is in ranks_to_exclude, so it must not call");
  }
  std::vector<int> ranks;
  std::string names;
  for (int rank = 0; rank < getSize(); ++rank) {
    if (std::find(ranks_to_exclude.begin(), ranks_to_exclude.end(), rank) != ranks_to_exclude.end()) continue;
    ranks.push_back(rank);
    names += std::to_string(rank) + "_";
  }
  const auto store = c10::make_intrusive<c10d::PrefixStore>("shrunk_to_" + names, store_);
  return subgroup(store, ranks, options_for(ranks, options));
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupShoal::merge(const c10::intrusive_ptr<c10d::Store>& store,
                                                           const c10::intrusive_ptr<c10d::Backend::Options>& wanted,
                                                           const int& rank, const int& size) {
  // c10d calls this once for each type of device, with the same store. One group serves all types, and its ranks can start
  // only one group there.
  if (merged_store_ == store) {
    if (c10::intrusive_ptr<c10d::Backend> made = merged_.lock(); made && made->getRank() == rank && made->getSize() == size)
      return made;
  }
  auto options = options_for({}, wanted);  // the global ranks of the members do not apply to the new group
  for (int member = 0; member < size; ++member) options->global_ranks_in_group.push_back(static_cast<std::uint64_t>(member));
  auto made = c10::make_intrusive<ProcessGroupShoal>(store, rank, size, std::move(options));
  merged_store_ = store;
  merged_ = c10::weak_intrusive_ptr<c10d::Backend>(made);
  return made;
}

}  // namespace shoal::torch
