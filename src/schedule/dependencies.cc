#include "src/schedule/dependencies.h"

namespace shoal {
namespace {

constexpr std::uint32_t kNoStep = ~std::uint32_t{0};

struct LastUse {
  std::uint32_t writer = kNoStep;
  std::vector<std::uint32_t> readers;  // since the last write
};

}  // namespace

Dependencies::Dependencies(const Program& program) {
  const std::uint32_t chunks = program.message_chunks;
  std::vector<LastUse> cells(std::size_t{2} * chunks + program.scratch_chunks);  // output, input, scratch
  const auto first_cell = [&](const Slice& slice) {
    return slice.first_chunk + (slice.buffer == Buffer::output ? 0 : slice.buffer == Buffer::input ? chunks : 2 * chunks);
  };
  first_.push_back(0);
  for (std::uint32_t i = 0; i < program.steps.size(); ++i) {
    const Step& step = program.steps[i];
    const auto wait_for = [&](std::uint32_t other) {
      if (other != kNoStep && other != i) steps_.push_back(other);
    };
    const std::uint32_t source = step.op == StepOp::recv ? 0 : first_cell(step.source);
    const std::uint32_t sources = step.op == StepOp::recv ? 0 : step.source.chunk_count;
    for (std::uint32_t cell = source; cell < source + sources; ++cell) {
      wait_for(cells[cell].writer);
      cells[cell].readers.push_back(i);
    }
    const std::uint32_t target = step.op == StepOp::send ? 0 : first_cell(step.target);
    const std::uint32_t targets = step.op == StepOp::send ? 0 : step.target.chunk_count;
    for (std::uint32_t cell = target; cell < target + targets; ++cell) {
      wait_for(cells[cell].writer);
      for (const std::uint32_t reader : cells[cell].readers) wait_for(reader);
      cells[cell].readers.clear();
      cells[cell].writer = i;
    }
    first_.push_back(steps_.size());
  }
}

}  // namespace shoal
