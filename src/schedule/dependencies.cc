#include "src/schedule/dependencies.h"

#include <algorithm>
#include <utility>

namespace shoal {
namespace {

constexpr std::uint32_t kNoStep = ~std::uint32_t{0};

/// All chunks of a Program (output, then input, then scratch) in runs that each step touches as a whole or not at all. A step
/// of a gather touches up to half of all chunks; there are a few runs.
class Runs {
 public:
  explicit Runs(const Program& program) : chunks_(program.message_chunks) {
    for (const Step& step : program.steps) {
      if (step.op != StepOp::recv) add(step.source);
      if (step.op != StepOp::send) add(step.target);
    }
    std::ranges::sort(begins_);
    begins_.erase(std::unique(begins_.begin(), begins_.end()), begins_.end());
  }

  [[nodiscard]] std::size_t size() const noexcept { return begins_.size(); }
  /// The first run of the slice, and the one after its last.
  [[nodiscard]] std::pair<std::size_t, std::size_t> of(const Slice& slice) const {
    const std::uint32_t first = first_chunk(slice);
    return {run_at(first), run_at(first + slice.chunk_count)};
  }

 private:
  [[nodiscard]] std::uint32_t first_chunk(const Slice& slice) const noexcept {
    return slice.first_chunk + (slice.buffer == Buffer::output ? 0 : slice.buffer == Buffer::input ? chunks_ : 2 * chunks_);
  }
  void add(const Slice& slice) {
    begins_.push_back(first_chunk(slice));
    begins_.push_back(first_chunk(slice) + slice.chunk_count);
  }
  [[nodiscard]] std::size_t run_at(std::uint32_t chunk) const {
    return static_cast<std::size_t>(std::ranges::lower_bound(begins_, chunk) - begins_.begin());
  }

  std::uint32_t chunks_;
  std::vector<std::uint32_t> begins_;
};

struct LastUse {
  std::uint32_t writer = kNoStep;
  std::vector<std::uint32_t> readers;  // since the last write
};

}  // namespace

Dependencies::Dependencies(const Program& program) {
  const Runs runs(program);
  std::vector<LastUse> uses(runs.size());
  first_.push_back(0);
  for (std::uint32_t i = 0; i < program.steps.size(); ++i) {
    const Step& step = program.steps[i];
    const auto wait_for = [&](std::uint32_t other) {
      if (other != kNoStep && other != i) steps_.push_back(other);
    };
    if (step.op != StepOp::recv) {
      const auto [begin, end] = runs.of(step.source);
      for (std::size_t run = begin; run < end; ++run) {
        wait_for(uses[run].writer);
        uses[run].readers.push_back(i);
      }
    }
    if (step.op != StepOp::send) {
      const auto [begin, end] = runs.of(step.target);
      for (std::size_t run = begin; run < end; ++run) {
        wait_for(uses[run].writer);
        for (const std::uint32_t reader : uses[run].readers) wait_for(reader);
        uses[run].readers.clear();
        uses[run].writer = i;
      }
    }
    first_.push_back(steps_.size());
  }
}

}  // namespace shoal
