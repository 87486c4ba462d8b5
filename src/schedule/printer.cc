#include "src/schedule/printer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "src/schedule/dependencies.h"
#include "src/schedule/describe.h"
#include "src/schedule/layout.h"
#include "src/schedule/timeline.h"

namespace shoal {
namespace {

/// What a step does, without its rank and number.
std::string action(const Step& step) {
  switch (step.op) {
    case StepOp::send:
      return fmt::format("send {} to {}", to_string(step.source), step.peer);
    case StepOp::recv:
      return fmt::format("recv {} from {}", to_string(step.target), step.peer);
    case StepOp::recv_reduce:
      if (step.source == step.target) return fmt::format("recv_reduce {} from {}", to_string(step.target), step.peer);
      return fmt::format("recv_reduce {} = {} and from {}", to_string(step.target), to_string(step.source), step.peer);
    case StepOp::copy:
      return fmt::format("copy {} = {}", to_string(step.target), to_string(step.source));
    case StepOp::reduce:
      return fmt::format("reduce {} with {}", to_string(step.target), to_string(step.source));
  }
  return "?";
}

std::string name_of(const Schedule& schedule) {
  return schedule.programs.empty() ? "empty schedule" : schedule.programs.front().algorithm;
}

const Step& step_of(const Schedule& schedule, int rank, std::uint32_t step) {
  return schedule.programs[static_cast<std::size_t>(rank)].steps[step];
}

/// "1 rank", "3 ranks".
std::string plural(std::size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace

std::string print_text(const Schedule& schedule) {
  std::string text =
      fmt::format("{}: {} on {}\n", name_of(schedule), to_string(schedule.collective), schedule.topology.shape());
  for (const Program& program : schedule.programs) {
    const ChunkLayout layout(schedule.collective_of(program.rank), schedule.topology.ranks(), program.rank,
                             program.message_chunks);
    fmt::format_to(std::back_inserter(text), "rank {} (node {}): {} of about {}, {}, {}\n", program.rank,
                   schedule.topology.node_of_rank[static_cast<std::size_t>(program.rank)],
                   plural(program.message_chunks, "chunk"), plural(layout.bytes({Buffer::output, 0, 1}).size_bytes, "byte"),
                   plural(program.lanes, "lane"), plural(program.steps.size(), "step"));
    for (std::size_t i = 0; i < program.steps.size(); ++i) {
      const std::string lane = program.lanes > 1 ? fmt::format("lane {:<3}", program.steps[i].lane) : "";
      fmt::format_to(std::back_inserter(text), "  {:>4}  {}{}\n", i, lane, action(program.steps[i]));
    }
  }
  return text;
}

std::string print_dot(const Schedule& schedule) {
  std::string text = "digraph schedule {\n  rankdir=LR;\n  node [shape=box, fontname=\"Helvetica\", fontsize=10];\n";
  fmt::format_to(std::back_inserter(text), "  label=\"{}: {} on {}\";\n", name_of(schedule), to_string(schedule.collective),
                 schedule.topology.shape());
  for (const Program& program : schedule.programs) {
    fmt::format_to(std::back_inserter(text), "  subgraph cluster_{0} {{\n    label=\"rank {0}\";\n", program.rank);
    const Dependencies dependencies(program);
    for (std::size_t i = 0; i < program.steps.size(); ++i) {
      fmt::format_to(std::back_inserter(text), "    r{}s{} [label=\"{}\"];\n", program.rank, i, action(program.steps[i]));
      for (const std::uint32_t before : dependencies.of(i)) {
        fmt::format_to(std::back_inserter(text), "    r{0}s{1} -> r{0}s{2} [style=dashed, color=gray];\n", program.rank, before,
                       i);
      }
    }
    text += "  }\n";
  }
  for (const Message& message : timeline(schedule)) {
    fmt::format_to(std::back_inserter(text), "  r{}s{} -> r{}s{};\n", message.from, message.send_step, message.to,
                   message.recv_step);
  }
  return text + "}\n";
}

namespace {

// Sizes in pixels.
constexpr double kMargin = 28;
constexpr double kHeader = 92;
constexpr double kLabels = 84;
constexpr double kRow = 46;
constexpr double kNodePadding = 20;
constexpr double kNodeGap = 14;
constexpr double kFooter = 34;
constexpr std::size_t kMaxLabels = 160;  // more would cover the arrows

struct Style {
  std::string_view name;
  std::string_view text;
  std::string_view colour;
  double width;
};
constexpr Style kStyles[] = {
    {"fold-far", "folded, between nodes", "#1d4ed8", 2.4},
    {"fold-near", "folded, inside a node", "#60a5fa", 1.6},
    {"copy-far", "copied, between nodes", "#c2410c", 2.4},
    {"copy-near", "copied, inside a node", "#fb9a3c", 1.6},
};

const Style& style_of(const Schedule& schedule, const Message& message) {
  const bool folded = step_of(schedule, message.to, message.recv_step).op == StepOp::recv_reduce;
  const bool far = schedule.topology.link_class(message.from, message.to) == LinkClass::network;
  return kStyles[(folded ? 0 : 2) + (far ? 0 : 1)];
}

/// Positions in the picture.
class Canvas {
 public:
  Canvas(const Schedule& schedule, int slots) : slots_(std::max(slots, 1)) {
    slot_width_ = std::clamp(1400.0 / slots_, 34.0, 120.0);
    y_of_rank_.resize(schedule.programs.size());
    double y = kHeader;
    for (int node = 0; node < schedule.topology.nodes(); ++node) {
      const double top = y;
      y += kNodePadding + kRow / 2;
      for (const int rank : schedule.topology.ranks_of_node(node)) {
        y_of_rank_[static_cast<std::size_t>(rank)] = y;
        y += kRow;
      }
      y += kNodePadding / 2 - kRow / 2;
      bands_.emplace_back(top, y - top);
      y += kNodeGap;
    }
    height_ = y - kNodeGap + kFooter;
  }

  [[nodiscard]] double x(int slot) const { return kMargin + kLabels + slot * slot_width_; }
  [[nodiscard]] double y(int rank) const { return y_of_rank_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] double right() const { return x(slots_) + 24; }
  /// Wide enough for the legend, even with few slots.
  [[nodiscard]] double width() const { return std::max(right() + kMargin, 820.0); }
  [[nodiscard]] double height() const { return height_; }
  [[nodiscard]] int slots() const { return slots_; }
  [[nodiscard]] const std::vector<std::pair<double, double>>& bands() const { return bands_; }

 private:
  int slots_;
  double slot_width_ = 0;
  double height_ = 0;
  std::vector<double> y_of_rank_;
  std::vector<std::pair<double, double>> bands_;  // top and height of each node
};

std::string chunk_label(const Slice& slice) {
  if (slice.chunk_count == 1) return fmt::format("{}", slice.first_chunk);
  return fmt::format("{}–{}", slice.first_chunk, slice.first_chunk + slice.chunk_count - 1);
}

void draw_frame(std::string& svg, const Schedule& schedule, const Canvas& canvas, std::size_t messages) {
  const auto out = std::back_inserter(svg);
  fmt::format_to(
      out,
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "font-family=\"Helvetica, Arial, sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n<defs>\n",
      canvas.width(), canvas.height());
  for (const Style& style : kStyles) {
    fmt::format_to(out,
                   "<marker id=\"{}\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerWidth=\"9\" markerHeight=\"9\" "
                   "markerUnits=\"userSpaceOnUse\" orient=\"auto\"><path d=\"M0 1 L10 5 L0 9 z\" fill=\"{}\"/></marker>\n",
                   style.name, style.colour);
  }
  fmt::format_to(out,
                 "</defs>\n<text x=\"{0}\" y=\"38\" font-size=\"20\" font-weight=\"bold\" fill=\"#0f172a\">{1}</text>\n"
                 "<text x=\"{0}\" y=\"58\" font-size=\"12.5\" fill=\"#475569\">{2} on {3}: {4} in {5}</text>\n",
                 kMargin, name_of(schedule), to_string(schedule.collective), schedule.topology.shape(),
                 plural(messages, "message"), plural(static_cast<std::size_t>(canvas.slots()), "slot"));
  for (std::size_t node = 0; node < canvas.bands().size(); ++node) {
    const auto [top, height] = canvas.bands()[node];
    fmt::format_to(out,
                   "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"10\" fill=\"#f1f5f9\"/>\n"
                   "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"10.5\" fill=\"#94a3b8\">node {}</text>\n",
                   kMargin, top, canvas.right() - kMargin, height, kMargin + 10, top + 14, node);
  }
  for (int slot = 0; slot <= canvas.slots(); ++slot) {
    fmt::format_to(out, "<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#e2e8f0\"/>\n",
                   canvas.x(slot), kHeader, canvas.height() - kFooter);
  }
  for (const Program& program : schedule.programs) {
    const double y = canvas.y(program.rank);
    fmt::format_to(
        out,
        "<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{2:.1f}\" y2=\"{1:.1f}\" stroke=\"#94a3b8\" stroke-width=\"1.2\"/>\n"
        "<text x=\"{3:.1f}\" y=\"{4:.1f}\" font-size=\"13\" text-anchor=\"end\" fill=\"#0f172a\">rank {5}</text>\n",
        canvas.x(0), y, canvas.right() - 10, canvas.x(0) - 12, y + 4.5, program.rank);
  }
}

void draw_legend(std::string& svg, const Schedule& schedule, const Canvas& canvas, const std::vector<Message>& messages) {
  double x = kMargin;
  for (const Style& style : kStyles) {
    if (std::ranges::none_of(messages, [&](const Message& m) { return &style_of(schedule, m) == &style; })) continue;
    fmt::format_to(
        std::back_inserter(svg),
        "<line x1=\"{:.1f}\" y1=\"76\" x2=\"{:.1f}\" y2=\"76\" stroke=\"{}\" stroke-width=\"{}\" marker-end=\"url(#{})\"/>\n"
        "<text x=\"{:.1f}\" y=\"80\" font-size=\"11.5\" fill=\"#334155\">{}</text>\n",
        x, x + 26, style.colour, style.width, style.name, x + 33, style.text);
    x += 46 + 6.6 * static_cast<double>(style.text.size());
  }
  fmt::format_to(std::back_inserter(svg),
                 "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"10.5\" fill=\"#94a3b8\">A slot is one message sent and one "
                 "received by a rank; "
                 "numbers are chunks of the message.</text>\n",
                 kMargin, canvas.height() - 12);
}

void draw_message(std::string& svg, const Schedule& schedule, const Canvas& canvas, const Message& message, bool labelled) {
  const Style& style = style_of(schedule, message);
  const double x1 = canvas.x(message.slot);
  const double y1 = canvas.y(message.from);
  const double x2 = canvas.x(message.slot + 1) - 3;
  const double y2 = canvas.y(message.to);
  const auto out = std::back_inserter(svg);
  fmt::format_to(
      out,
      "<g><title>{}; {}</title><line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" stroke-width=\"{}\" "
      "marker-end=\"url(#{})\"/>",
      describe_step(schedule.programs[static_cast<std::size_t>(message.from)], message.send_step),
      describe_step(schedule.programs[static_cast<std::size_t>(message.to)], message.recv_step), x1, y1, x2, y2, style.colour,
      style.width, style.name);
  fmt::format_to(out, "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.6\" fill=\"{}\"/>", x1, y1, style.colour);
  if (labelled) {
    // Near the sender, where arrows do not cross yet.
    fmt::format_to(out,
                   "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"10\" text-anchor=\"middle\" fill=\"{}\" stroke=\"#f8fafc\" "
                   "stroke-width=\"3\" "
                   "stroke-linejoin=\"round\" paint-order=\"stroke\">{}</text>",
                   x1 + 0.26 * (x2 - x1), y1 + 0.26 * (y2 - y1) + 3.5, style.colour,
                   chunk_label(step_of(schedule, message.from, message.send_step).source));
  }
  svg += "</g>\n";
}

}  // namespace

std::string print_svg(const Schedule& schedule) {
  const std::vector<Message> messages = timeline(schedule);
  int slots = 0;
  for (const Message& message : messages) slots = std::max(slots, message.slot + 1);
  const Canvas canvas(schedule, slots);
  std::string svg;
  draw_frame(svg, schedule, canvas, messages.size());
  draw_legend(svg, schedule, canvas, messages);
  for (const Message& message : messages) draw_message(svg, schedule, canvas, message, messages.size() <= kMaxLabels);
  return svg + "</svg>\n";
}

}  // namespace shoal
