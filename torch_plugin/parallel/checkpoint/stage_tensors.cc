#include "torch_plugin/parallel/checkpoint/stage_tensors.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

namespace shoal::parallel {
namespace {

constexpr std::string_view kParameterPrefix = "parameter/";
constexpr std::string_view kBufferPrefix = "buffer/";
constexpr std::string_view kOptimizerPrefix = "optimizer/";

std::string joined(std::string_view prefix, const std::string& name) { return std::string(prefix) + name; }

/// "blocks.3.conv.weight/exp_avg" without "/exp_avg".
std::string parameter_of(const std::string& name) { return name.substr(0, name.rfind('/')); }

/// The tensors of stages, and what a checkpoint has of their optimizers.
class WantedTensors {
 public:
  explicit WantedTensors(const std::vector<ModelTensor>& stages) : wanted_(stages) {
    for (const ModelTensor& each : stages) by_name_[each.name] = &each;
  }
  /// A tensor of a checkpoint, if it is such state. `is_number`: it has no dimension.
  void add_state(const std::string& stored, bool is_number) {
    if (!stored.starts_with(kOptimizerPrefix)) return;
    const auto parameter = by_name_.find(joined(kParameterPrefix, parameter_of(stored.substr(kOptimizerPrefix.size()))));
    if (parameter == by_name_.end() || !added_.insert(stored).second) return;
    wanted_.push_back(is_number ? ModelTensor{stored, {}, {}}
                                : ModelTensor{stored, parameter->second->value, parameter->second->slice});
  }
  std::vector<ModelTensor> take() { return std::move(wanted_); }

 private:
  std::map<std::string_view, const ModelTensor*> by_name_;
  std::set<std::string> added_;  // a tensor in several slices is wanted once
  std::vector<ModelTensor> wanted_;
};

}  // namespace

std::vector<ModelTensor> stage_tensors(const std::vector<std::shared_ptr<Unit>>& chunks, const std::vector<SplitTensor>& split,
                                       int index) {
  const auto slice_of = [&](const std::string& name, const at::Tensor& tensor) {
    const auto found = std::ranges::find(split, name, &SplitTensor::name);
    if (found == split.end()) return Slice{};
    return Slice{found->dimension, index * tensor.size(found->dimension), found->whole_size};
  };
  std::vector<ModelTensor> tensors;
  for (const std::shared_ptr<Unit>& chunk : chunks) {
    for (const auto& named : chunk->named_parameters()) {
      const std::string& name = named.key();
      tensors.push_back({joined(kParameterPrefix, name), named.value().detach(), slice_of(name, named.value())});
    }
    for (const auto& named : chunk->named_buffers()) {
      const std::string& name = named.key();
      tensors.push_back({joined(kBufferPrefix, name), named.value().detach(), slice_of(name, named.value())});
    }
  }
  return tensors;
}

std::vector<ModelTensor> optimizer_tensors(const OptimizerState& state, const std::vector<ModelTensor>& stages) {
  std::map<std::string_view, const ModelTensor*> by_name;
  for (const ModelTensor& each : stages) by_name[each.name] = &each;
  std::vector<ModelTensor> tensors;
  for (const auto& [name, value] : state) {
    const auto found = by_name.find(joined(kParameterPrefix, parameter_of(name)));
    TORCH_CHECK_VALUE(found != by_name.end(), "the stages have no parameter for the optimizer's state ", name);
    tensors.push_back({joined(kOptimizerPrefix, name), value, value.dim() == 0 ? Slice{} : found->second->slice});
  }
  return tensors;
}

std::vector<ModelTensor> wanted_tensors(const StoredCheckpoint& checkpoint, const std::vector<ModelTensor>& stages) {
  WantedTensors wanted(stages);
  for (const StoredTensor& stored : checkpoint.manifest.tensors) wanted.add_state(stored.name, stored.shape.empty());
  return wanted.take();
}

std::vector<ModelTensor> wanted_tensors(const WholeTensors& whole, const std::vector<ModelTensor>& stages) {
  WantedTensors wanted(stages);
  for (const auto& [name, tensor] : whole) wanted.add_state(name, tensor.dim() == 0);
  return wanted.take();
}

OptimizerState restore_stages(const std::vector<ModelTensor>& wanted, const std::vector<at::Tensor>& found) {
  TORCH_CHECK_VALUE(wanted.size() == found.size(), "found ", found.size(), " tensors, not the ", wanted.size(), " wanted ones");
  const at::NoGradGuard no_grad;
  OptimizerState state;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const std::string& name = wanted[i].name;
    if (name.starts_with(kOptimizerPrefix)) {
      state[name.substr(kOptimizerPrefix.size())] = found[i];
    } else if (name.starts_with(kParameterPrefix) || name.starts_with(kBufferPrefix)) {
      wanted[i].value.copy_(found[i]);
    }
  }
  return state;
}

}  // namespace shoal::parallel
