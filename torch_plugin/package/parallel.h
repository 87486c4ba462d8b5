// The header of model parallelism, which a LibTorch program includes as <shoal/parallel.h>: chains, partitions, pipelines,
// checkpoints.
#pragma once

#include "torch_plugin/parallel/chain/chain.h"
#include "torch_plugin/parallel/checkpoint/stage_tensors.h"
#include "torch_plugin/parallel/gradients/gradient_norm.h"
#include "torch_plugin/parallel/partition/partition_chain.h"
#include "torch_plugin/parallel/profiler/profiler.h"
#include "torch_plugin/parallel/recompute/recompute.h"
#include "torch_plugin/parallel/runtime/pipeline_model.h"
#include "torch_plugin/parallel/tensor/layer_pairs.h"
#include "torch_plugin/parallel/tensor/layer_slices.h"
