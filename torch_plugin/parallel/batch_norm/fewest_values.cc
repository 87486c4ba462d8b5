#include "torch_plugin/parallel/batch_norm/fewest_values.h"

#include <algorithm>

#include "torch_plugin/parallel/batch_norm/batch_norm_observer.h"
#include "torch_plugin/parallel/chain/probe.h"

namespace shoal::parallel {
namespace {

/// The unit whose layer makes the call.
std::string unit_of(const Chain& chain, const BatchNormCall& call) {
  const auto is_its_own = [&](const NamedTensor& named) {
    return (call.weight.defined() && named.second.is_same(call.weight)) ||
           (call.running_mean.defined() && named.second.is_same(call.running_mean));
  };
  const auto has_it = [&](const Part& unit) {
    return std::ranges::any_of(unit.parameters(), is_its_own) || std::ranges::any_of(unit.buffers(), is_its_own);
  };
  const auto found = std::ranges::find_if(chain.units(), has_it);
  return found == chain.units().end() ? "" : found->name;
}

}  // namespace

Result<std::optional<FewestValues>> fewest_values(const Chain& chain, const at::Tensor& images) {
  std::optional<FewestValues> fewest;
  const BatchNormObserver observer([&](const BatchNormCall& call) {
    const std::int64_t values = call.values() / images.size(0);
    if (!fewest || values < fewest->for_each_image) fewest = FewestValues{unit_of(chain, call), values};
  });
  const auto probed = probe(chain, images);
  if (!probed.ok()) return probed.status();
  return fewest;
}

}  // namespace shoal::parallel
