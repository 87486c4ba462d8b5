#include "bench/train/pipeline/tensor_group.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace shoal::train {

using pipeline::Axis;

Result<parallel::LayerSlices::Group> make_tensor_group(const Job& job, const pipeline::Layout& layout,
                                                       const std::string& name) {
  if (layout.size(Axis::tensor) == 1) return parallel::LayerSlices::Group();
  return make_group_of(job, layout.group(job.rank(), Axis::tensor), name);
}

std::string split_text(const parallel::TensorSplit& split, int ranks) {
  std::set<std::string> layers;
  for (const parallel::SplitTensor& tensor : split.split) layers.insert(tensor.name.substr(0, tensor.name.rfind('.')));
  std::vector<std::pair<std::string, std::string>> whole;  // by reason, in the order of the model
  for (const parallel::WholeLayer& layer : split.whole) {
    const auto same = std::ranges::find(whole, layer.reason, &std::pair<std::string, std::string>::first);
    if (same == whole.end()) {
      whole.emplace_back(layer.reason, layer.name);
    } else {
      same->second += ", " + layer.name;
    }
  }
  std::string text = std::to_string(layers.size()) + " layers are split over " + std::to_string(ranks) + " ranks";
  for (const auto& [reason, names] : whole) text += "; whole (" + reason + "): " + names;
  return text;
}

}  // namespace shoal::train
