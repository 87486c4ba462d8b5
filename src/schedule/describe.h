// Descriptions of steps and slices, for messages and for the Printer.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "src/schedule/program.h"

namespace shoal {

std::string_view to_string(StepOp op) noexcept;  ///< "recv_reduce"; "?" outside the enum
std::string to_string(const Slice& slice);       ///< "output[3]", "input[3..5)", "scratch[0] with chunk[7]"

/// "rank 2 step 7 (recv_reduce output[3..5) from rank 1)". Precondition: step < program.steps.size().
std::string describe_step(const Program& program, std::size_t step);

}  // namespace shoal
