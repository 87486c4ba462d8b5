#include "src/pipeline/drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

namespace shoal::pipeline {
namespace {

std::string title(const PipelineSchedule& schedule, const Replay& replay) {
  const Shape& shape = schedule.shape;
  return fmt::format("{}: {} ranks{}, {} microbatches, step {:g} us, bubble {:.1f} %", to_string(shape.kind), shape.ranks,
                     shape.chunks > 1 ? fmt::format(" with {} chunks", shape.chunks) : "", shape.microbatches,
                     microseconds(replay.step_ps), 100 * replay.bubble());
}

char character(const Action& action) {
  if (action.op == ActionOp::forward) return static_cast<char>('0' + action.microbatch % 10);
  if (action.op == ActionOp::backward_weight) return 'w';
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvxyz";  // `w` is the second half of a backward
  return kLetters[static_cast<std::size_t>(action.microbatch) % kLetters.size()];
}

/// The largest time of which every action and every step of `replay` is a multiple.
std::int64_t common_unit(const Replay& replay) {
  std::int64_t unit = replay.step_ps;
  for (const RankReplay& rank : replay.ranks) {
    for (const Span& span : rank.spans) {
      for (std::int64_t value : {span.begin_ps, span.end_ps}) {
        while (value != 0) value = std::exchange(unit, value) % value;
      }
    }
  }
  return std::max<std::int64_t>(unit, 1);
}

// Sizes in pixels.
constexpr double kMargin = 24;
constexpr double kLabels = 60;
constexpr double kTop = 64;
constexpr double kRow = 34;
constexpr double kBox = 26;
constexpr double kReduceBox = 4;
constexpr double kTimeWidth = 1200;
constexpr double kNarrowestLabel = 14;

struct Colours {
  std::string_view odd;  // of the first, third, ... chunk of a rank
  std::string_view even;
};

Colours colours_of(ActionOp op) {
  switch (op) {
    case ActionOp::forward:
      return {"#93c5fd", "#3b82f6"};
    case ActionOp::backward_weight:
      return {"#fde68a", "#f59e0b"};
    case ActionOp::reduce_gradients:
      return {"#64748b", "#64748b"};
    default:
      return {"#86efac", "#22c55e"};
  }
}

void draw_span(std::string& svg, const Shape& shape, const Span& span, double y, double scale) {
  const double x = kMargin + kLabels + static_cast<double>(span.begin_ps) * scale;
  const double width = static_cast<double>(span.end_ps - span.begin_ps) * scale;
  const bool reduces = span.action.op == ActionOp::reduce_gradients;
  const Colours colours = colours_of(span.action.op);
  const auto out = std::back_inserter(svg);
  fmt::format_to(out,
                 "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\" stroke=\"#ffffff\" "
                 "stroke-width=\"0.5\"><title>{} of stage {}, {:g} to {:g} us</title></rect>\n",
                 x, reduces ? y + kBox : y, width, reduces ? kReduceBox : kBox,
                 span.action.stage / shape.ranks % 2 == 0 ? colours.odd : colours.even, to_text(span.action, false),
                 span.action.stage, microseconds(span.begin_ps), microseconds(span.end_ps));
  if (reduces || width < kNarrowestLabel) return;
  fmt::format_to(out, "<text x=\"{:.2f}\" y=\"{:.1f}\" font-size=\"10\" text-anchor=\"middle\" fill=\"#0f172a\">{}</text>\n",
                 x + width / 2, y + kBox / 2 + 3.5, span.action.microbatch);
}

}  // namespace

std::string draw_text(const PipelineSchedule& schedule, const Replay& replay, int columns) {
  const std::int64_t unit = common_unit(replay);
  const std::int64_t wanted = std::max(columns, 1);
  // Columns of equal times where they fit, else as many as may be.
  const bool fits = replay.step_ps / unit <= wanted;
  const std::int64_t count = fits ? std::max<std::int64_t>(replay.step_ps / unit, 1) : wanted;
  const double scale = replay.step_ps > 0 ? static_cast<double>(count) / static_cast<double>(replay.step_ps) : 0;
  std::string text = title(schedule, replay) + "\n";
  for (std::size_t rank = 0; rank < replay.ranks.size(); ++rank) {
    std::string line(static_cast<std::size_t>(count), '.');
    for (const Span& span : replay.ranks[rank].spans) {
      if (!is_compute(span.action.op) || span.begin_ps == span.end_ps) continue;
      const auto begin = std::min(static_cast<std::int64_t>(static_cast<double>(span.begin_ps) * scale + 0.5), count - 1);
      const auto end = std::max(static_cast<std::int64_t>(static_cast<double>(span.end_ps) * scale + 0.5), begin + 1);
      std::fill(line.begin() + begin, line.begin() + std::min(end, count), character(span.action));
    }
    text += fmt::format("r{:<3}|{}|\n", rank, line);
  }
  return text + fmt::format("     0..9 forward, a..z backward, w gradients of weights, . idle; a column is {:g} us\n",
                            microseconds(replay.step_ps) / static_cast<double>(count));
}

std::string draw_svg(const PipelineSchedule& schedule, const Replay& replay) {
  const double width = 2 * kMargin + kLabels + kTimeWidth;
  const double height = kTop + kRow * static_cast<double>(replay.ranks.size()) + kMargin;
  const double scale = replay.step_ps > 0 ? kTimeWidth / static_cast<double>(replay.step_ps) : 0;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "font-family=\"Helvetica, Arial, sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
      "<text x=\"{2}\" y=\"32\" font-size=\"16\" font-weight=\"bold\" fill=\"#0f172a\">{3}</text>\n",
      width, height, kMargin, title(schedule, replay));
  for (std::size_t rank = 0; rank < replay.ranks.size(); ++rank) {
    const double y = kTop + kRow * static_cast<double>(rank);
    fmt::format_to(std::back_inserter(svg),
                   "<text x=\"{0}\" y=\"{1:.1f}\" font-size=\"12\" fill=\"#0f172a\">rank {2}</text>\n"
                   "<rect x=\"{3}\" y=\"{4:.1f}\" width=\"{5}\" height=\"{6}\" fill=\"#f1f5f9\"/>\n",
                   kMargin, y + kBox / 2 + 4, rank, kMargin + kLabels, y, kTimeWidth, kBox);
    for (const Span& span : replay.ranks[rank].spans) draw_span(svg, schedule.shape, span, y, scale);
  }
  return svg + "</svg>\n";
}

}  // namespace shoal::pipeline
