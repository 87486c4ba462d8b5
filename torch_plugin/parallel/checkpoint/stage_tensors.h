// The tensors of a rank's stages and their optimizer, as a checkpoint holds them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "torch_plugin/parallel/checkpoint/checkpoint.h"
#include "torch_plugin/parallel/tensor/layer_slices.h"
#include "torch_plugin/parallel/unit.h"

namespace shoal::parallel {

/// What an optimizer remembers: "blocks.3.conv.weight/exp_avg", by the name of the parameter in the unsplit model.
using OptimizerState = std::map<std::string, at::Tensor>;

/// Parameters and buffers of the stages: "parameter/blocks.3.conv.weight", "buffer/...". They share memory with those of the
/// stages. `split` has those that are slices, of which this rank has number `index`: what split_pairs() returns.
std::vector<ModelTensor> stage_tensors(const std::vector<std::shared_ptr<Unit>>& chunks,
                                       const std::vector<SplitTensor>& split = {}, int index = 0);

/// `state` as "optimizer/blocks.3.conv.weight/exp_avg", split as the parameter in `stages`, which stage_tensors() returned.
/// State of no dimension is whole. Throws c10::ValueError for state of a parameter that is not in `stages`.
std::vector<ModelTensor> optimizer_tensors(const OptimizerState& state, const std::vector<ModelTensor>& stages);

/// All tensors that load_tensors() is to find for `stages`: these first, then what optimizers remember of their parameters.
std::vector<ModelTensor> wanted_tensors(const StoredCheckpoint& checkpoint, const std::vector<ModelTensor>& stages);
/// The same for take_tensors().
std::vector<ModelTensor> wanted_tensors(const WholeTensors& whole, const std::vector<ModelTensor>& stages);

/// Puts what load_tensors() has found for `wanted` into the stages, and returns what the optimizer remembers.
OptimizerState restore_stages(const std::vector<ModelTensor>& wanted, const std::vector<at::Tensor>& found);

}  // namespace shoal::parallel
