#include "src/schedule/describe.h"

#include <fmt/format.h>

namespace shoal {

std::string_view to_string(StepOp op) noexcept {
  switch (op) {
    case StepOp::send:
      return "send";
    case StepOp::recv:
      return "recv";
    case StepOp::recv_reduce:
      return "recv_reduce";
    case StepOp::copy:
      return "copy";
    case StepOp::reduce:
      return "reduce";
  }
  return "?";
}

std::string to_string(const Slice& slice) {
  const std::string_view buffer = slice.buffer == Buffer::input    ? "input"
                                  : slice.buffer == Buffer::output ? "output"
                                                                   : "scratch";
  const auto run = [](std::uint32_t first, std::uint32_t count) {
    return count == 1 ? fmt::format("[{}]", first) : fmt::format("[{}..{})", first, std::uint64_t{first} + count);
  };
  const std::string place = fmt::format("{}{}", buffer, run(slice.first_chunk, slice.chunk_count));
  if (slice.buffer != Buffer::scratch) return place;
  return fmt::format("{} with chunk{}", place, run(slice.holds, slice.chunk_count));
}

std::string describe_step(const Program& program, std::size_t step) {
  const Step& s = program.steps[step];
  const auto place = fmt::format("rank {} step {}", program.rank, step);
  switch (s.op) {
    case StepOp::send:
      return fmt::format("{} (send {} to rank {})", place, to_string(s.source), s.peer);
    case StepOp::recv:
      return fmt::format("{} (recv {} from rank {})", place, to_string(s.target), s.peer);
    case StepOp::recv_reduce: {
      const std::string own = s.source == s.target ? "" : fmt::format(" = {} and", to_string(s.source));
      return fmt::format("{} (recv_reduce {}{} from rank {})", place, to_string(s.target), own, s.peer);
    }
    case StepOp::copy:
      return fmt::format("{} (copy {} = {})", place, to_string(s.target), to_string(s.source));
    case StepOp::reduce:
      return fmt::format("{} (reduce {} with {})", place, to_string(s.target), to_string(s.source));
  }
  return place + " (unknown op)";
}

}  // namespace shoal
