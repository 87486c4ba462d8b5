#include "torch_plugin/parallel/checkpoint/stage_tensors.h"

#include <algorithm>
#include <set>
#include <string_view>

namespace shoal::parallel {
namespace {

constexpr std::string_view kParameterPrefix = "parameter/";
constexpr std::string_view kBufferPrefix = "buffer/";
constexpr std::string_view kOptimizerPrefix = "optimizer/";

std::string joined(std::string_view prefix, const std::string& name) { return std::string(prefix) + name; }

/// "blocks.3.conv.weight/exp_avg" without "/exp_avg".
std::string parameter_of(const std::string& name) { return name.substr(0, name.rfind('/')); }

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
  std::map<std::string_view, const ModelTensor*> by_name;
  for (const ModelTensor& each : stages) by_name[each.name] = &each;
  std::vector<ModelTensor> wanted = stages;
  std::set<std::string_view> added;  // a tensor in several slices is wanted once
  for (const StoredTensor& stored : checkpoint.manifest.tensors) {
    if (!stored.name.starts_with(kOptimizerPrefix)) continue;
    const std::string name = stored.name.substr(kOptimizerPrefix.size());
    const auto parameter = by_name.find(joined(kParameterPrefix, parameter_of(name)));
    if (parameter == by_name.end() || !added.insert(stored.name).second) continue;
    if (stored.shape.empty()) {
      wanted.push_back({stored.name, {}, {}});
    } else {
      wanted.push_back({stored.name, parameter->second->value, parameter->second->slice});
    }
  }
  return wanted;
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
