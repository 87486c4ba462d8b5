// StepHeader: what rank 0 tells the other ranks at the start of each step.
#pragma once

#include <cstdint>

#include "torch_plugin/parallel/runtime/tensor_layout.h"
#include "torch_plugin/parallel/runtime/text_field.h"

namespace shoal::parallel {

enum class StepKind : std::int64_t {
  training,
  evaluation,
  end,      ///< no step: the data of rank 0 have ended
  refused,  ///< no step: the arguments on rank 0 are wrong; every rank throws `refusal`
};

/// Trivially copyable.
struct StepHeader {
  StepKind kind = StepKind::refused;
  std::int64_t batch = 0;  ///< images
  TensorLayout image = {};
  TensorLayout target = {};  ///< no tensor: the loss needs none
  TextField refusal{};
};

}  // namespace shoal::parallel
