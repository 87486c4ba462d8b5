#include "src/cli/pipeline_tools.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "src/cli/pipeline_options.h"
#include "src/cli/schedule_options.h"
#include "src/pipeline/drawing.h"
#include "src/pipeline/report.h"
#include "src/pipeline/schedule.h"
#include "src/pipeline/verifier.h"
#ifdef SHOAL_HAVE_SIMGRID
#include "src/pipeline/tasks.h"
#include "src/simulate/simgrid_engine.h"
#endif

namespace shoal {
namespace {

/// What the tools show besides the pipeline itself.
struct PipelineView {
  std::string format = "text";
  std::string output;
  bool messages = false;
  bool json = false;
  bool simgrid = false;
};

/// A pipeline of the options, played and proven.
struct PipelineCase {
  pipeline::Shape shape;
  pipeline::StageTimes times;
  pipeline::Prediction prediction;
  std::string recomputation;  // a line, or nothing
};

Result<PipelineCase> pipeline_case(const PipelineOptions& options) {
  const auto shape = options.shape();
  if (!shape.ok()) return shape.status();
  auto times = options.times();
  if (!times.ok()) return times.status();
  auto prediction = pipeline::predict(*shape, times->times);
  if (!prediction.ok()) return prediction.status();
  if (Status status = pipeline::to_status(pipeline::verify(prediction->schedule)); !status.ok()) return status;
  return PipelineCase{*shape, std::move(times->times), *std::move(prediction), std::move(times->recomputation)};
}

std::string orders_text(const pipeline::PipelineSchedule& schedule, bool messages) {
  std::string text;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    text += fmt::format("r{}: {}\n", rank, pipeline::to_text(schedule.shape, schedule.ranks[rank], messages));
  }
  return text;
}

Status print_pipeline(const PipelineOptions& options, const PipelineView& view) {
  const auto found = pipeline_case(options);
  if (!found.ok()) return found.status();
  return write_output(view.output, orders_text(found->prediction.schedule, view.messages) + found->recomputation);
}

/// The rule of a kind of schedule, for people.
std::string_view rule_of(pipeline::ScheduleKind kind) {
  switch (kind) {
    case pipeline::ScheduleKind::simple:
      return "all forwards, then all backwards; every stage holds all microbatches";
    case pipeline::ScheduleKind::one_f_one_b:
      return "a stage makes as many forwards as stages follow, itself included, then a backward and a forward in turn";
    case pipeline::ScheduleKind::eager_1f1b:
      return "1f1b with nearly twice as many forwards first, so that messages of up to half of a turn cost nothing";
    case pipeline::ScheduleKind::interleaved:
      return "at each moment a backward that is ready, else a forward while the stage holds fewer than active_microbatches; "
             "decided before the step";
    case pipeline::ScheduleKind::virtual_stages:
      return "1f1b over several chunks of the model on each rank: a smaller bubble, more messages";
    case pipeline::ScheduleKind::zb_h1:
      return "1f1b whose gradients of the weights are computed late, in the bubble";
    case pipeline::ScheduleKind::forward_only:
      return "evaluation: forwards in order";
  }
  return "";
}

Status explain_pipeline(const PipelineOptions& options, const PipelineView& view) {
  const auto found = pipeline_case(options);
  if (!found.ok()) return found.status();
  const pipeline::Shape& shape = found->shape;
  std::string text = fmt::format("{}: {}.\n{}", to_string(shape.kind), rule_of(shape.kind),
                                 orders_text(found->prediction.schedule, view.messages));
  text += fmt::format("proven: each microbatch once, in order, without deadlock\n{}\n{}\n", found->recomputation,
                      rank_table(found->prediction));
  text += fmt::format("step {:g} us, bubble {:.1f} %\n", pipeline::microseconds(found->prediction.replay.step_ps),
                      100 * found->prediction.replay.bubble());
  if (shape.kind != pipeline::ScheduleKind::forward_only) {
    text += fmt::format("\nthe schedules with these times, the fastest first:\n{}", comparison_table(shape, found->times));
  }
  for (const std::string& note : notes(shape)) text += fmt::format("note: {}\n", note);
  return write_output(view.output, text);
}

nlohmann::ordered_json simulation_json(const PipelineCase& found) {
  const pipeline::Replay& replay = found.prediction.replay;
  nlohmann::ordered_json object{{"step_us", pipeline::microseconds(replay.step_ps)}, {"bubble", replay.bubble()}};
  object["ranks"] = nlohmann::ordered_json::array();
  for (const pipeline::RankReplay& rank : replay.ranks) {
    object["ranks"].push_back({{"busy_us", pipeline::microseconds(rank.busy_ps)},
                               {"idle_us", pipeline::microseconds(replay.step_ps - rank.busy_ps)},
                               {"held", rank.most_held},
                               {"messages", rank.messages},
                               {"sent_bytes", rank.sent_bytes}});
  }
  return object;
}

#ifdef SHOAL_HAVE_SIMGRID
Result<double> simgrid_us(const PipelineCase& found, double bytes_per_us) {
  const auto graph = pipeline::task_graph(found.prediction.schedule, found.times, bytes_per_us);
  if (!graph.ok()) return graph.status();
  std::fflush(stdout);  // SimGrid runs in a child process, which would print buffered text a second time
  const auto run = run_on_simgrid(*graph);
  if (!run.ok()) return run.status();
  return run->total_us;
}
#else
Result<double> simgrid_us(const PipelineCase&, double) {
  return Status(StatusCode::unsupported, "--simgrid: this program was built without SimGrid");
}
#endif

Status simulate_pipeline(const PipelineOptions& options, const PipelineView& view) {
  const auto found = pipeline_case(options);
  if (!found.ok()) return found.status();
  const auto& [schedule, replay] = found->prediction;
  std::optional<double> on_simgrid;
  if (view.simgrid) {
    const auto simulated = simgrid_us(*found, options.link_bytes_per_us());
    if (!simulated.ok()) return simulated.status();
    on_simgrid = *simulated;
  }
  if (view.json) {
    auto object = simulation_json(*found);
    if (on_simgrid) object["simgrid_us"] = *on_simgrid;
    return write_output(view.output, object.dump() + "\n");
  }
  if (view.format == "svg") return write_output(view.output, draw_svg(schedule, replay));
  std::string text = draw_text(schedule, replay) + rank_table(found->prediction);
  text += fmt::format("step {:g} us, bubble {:.1f} %\n", pipeline::microseconds(replay.step_ps), 100 * replay.bubble());
  if (on_simgrid) text += fmt::format("on SimGrid, where messages of a rank share its wire: step {:.6g} us\n", *on_simgrid);
  return write_output(view.output, text);
}

using Tool = Status (*)(const PipelineOptions&, const PipelineView&);

/// A subcommand `pipeline` of `parent` with the options that all tools have.
CLI::App* add_tool(CLI::App& parent, const std::string& about, Tool tool, const std::shared_ptr<PipelineView>& view,
                   int* exit_status) {
  auto* command = parent.add_subcommand("pipeline", about);
  const auto options = std::make_shared<PipelineOptions>();
  options->add_shape_to(*command);
  options->add_times_to(*command);
  options->add_partition_to(*command);
  command->add_option("--output,-o", view->output, "file to write (default: standard output)");
  command->callback([=, name = parent.get_name() + " pipeline"] {
    const Status status = tool(*options, *view);
    if (!status.ok()) *exit_status = report_error(name, status);
  });
  return command;
}

}  // namespace

void add_print_pipeline_command(CLI::App& print, int* exit_status) {
  const auto view = std::make_shared<PipelineView>();
  auto* command = add_tool(print, "Shows the actions of each rank of a pipeline", print_pipeline, view, exit_status);
  command->add_flag("--messages", view->messages, "show messages, too: >F and <F activations, >B and <B gradients");
}

void add_explain_pipeline_command(CLI::App& explain, int* exit_status) {
  const auto view = std::make_shared<PipelineView>();
  auto* command =
      add_tool(explain, "Shows the rule, costs and alternatives of a pipeline", explain_pipeline, view, exit_status);
  command->add_flag("--messages", view->messages, "show messages, too");
}

void add_simulate_pipeline_command(CLI::App& simulate, int* exit_status) {
  const auto view = std::make_shared<PipelineView>();
  auto* command =
      add_tool(simulate, "Shows the time line of a step, idle times, memory and bytes", simulate_pipeline, view, exit_status);
  command->add_option("--format,-f", view->format, "text or svg")->capture_default_str()->check(CLI::IsMember({"text", "svg"}));
  command->add_flag("--json", view->json, "print one JSON object instead");
  command->add_flag("--simgrid", view->simgrid, "run it on SimGrid, too, where the messages of a rank share its wire");
}

}  // namespace shoal
