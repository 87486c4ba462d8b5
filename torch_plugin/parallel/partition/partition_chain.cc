#include "torch_plugin/parallel/partition/partition_chain.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "torch_plugin/parallel/partition/text_of_rank_0.h"
#include "torch_plugin/parallel/profiler/profiler.h"

namespace shoal::parallel {
namespace {

/// The first unit in which `chain` is not what was profiled; -1 = none.
int first_difference(const Chain& chain, const pipeline::Profile& profile) {
  const std::vector<std::string>& mine = chain.unit_names();
  const std::vector<std::string> theirs = profile.unit_names();
  const auto [at, other] = std::mismatch(mine.begin(), mine.end(), theirs.begin(), theirs.end());
  return at == mine.end() && other == theirs.end() ? -1 : static_cast<int>(at - mine.begin());
}

/// The same on all ranks: whether each has the units of `profile`.
Status agree_on_units(const Chain& chain, const pipeline::Profile& profile, Communicator& communicator) {
  const std::int32_t mine = first_difference(chain, profile);
  std::vector<std::int32_t> all(static_cast<std::size_t>(communicator.size()));
  if (Status status = communicator.all_gather(&mine, all.data(), 1, DataType::int32); !status.ok()) return status;
  const auto bad = std::find_if(all.begin(), all.end(), [](std::int32_t unit) { return unit >= 0; });
  if (bad == all.end()) return {};
  const auto unit = static_cast<std::size_t>(*bad);
  const std::string what = unit < profile.units.size() ? "'" + profile.units[unit].name + "'" : "no unit";
  return {StatusCode::mismatch, "the chain of rank " + std::to_string(bad - all.begin()) +
                                    " differs from that of rank 0 at unit " + std::to_string(unit) + ", which is " + what +
                                    " on rank 0; make the same model on all ranks"};
}

}  // namespace

Result<pipeline::Partition> partition_chain(const Chain& chain, const at::Tensor& microbatch, Communicator& communicator,
                                            pipeline::PartitionRequest request) {
  Result<std::string> measured = std::string();
  if (communicator.rank() == 0) {
    const Result<pipeline::Profile> profiled = profile(chain, microbatch);
    measured = profiled.ok() ? Result<std::string>(pipeline::to_json(*profiled)) : Result<std::string>(profiled.status());
  }
  const Result<std::string> text = text_of_rank_0(communicator, measured);
  if (!text.ok()) return text.status();
  const Result<pipeline::Profile> profile = pipeline::parse_profile(*text, "profile of rank 0");
  if (!profile.ok()) return profile.status();
  if (Status status = agree_on_units(chain, *profile, communicator); !status.ok()) return status;
  request.rules.shape.ranks = communicator.size();
  return pipeline::partition(*profile, request);
}

Result<std::vector<std::shared_ptr<Unit>>> make_stages(const Chain& chain, const pipeline::Partition& partition, int rank,
                                                       int ranks) {
  const auto count = static_cast<int>(partition.stages.size());
  if (ranks < 1 || count % ranks != 0 || rank < 0 || rank >= ranks) {
    return Status(StatusCode::invalid_argument, "rank " + std::to_string(rank) + " of " + std::to_string(ranks) +
                                                    " has no equal share of " + std::to_string(count) + " stages");
  }
  std::vector<std::shared_ptr<Unit>> stages;
  for (int at = rank; at < count; at += ranks) {
    const pipeline::Stage& bounds = partition.stages[static_cast<std::size_t>(at)];
    Result<std::shared_ptr<Unit>> stage = chain.stage(bounds.first, bounds.end, bounds.recomputed_units);
    if (!stage.ok()) return stage.status();
    stages.push_back(*std::move(stage));
  }
  return stages;
}

}  // namespace shoal::parallel
