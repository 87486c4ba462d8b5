#include "bench/train/turn.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <string>

#include "bench/train/survival.h"
#include "torch_plugin/process_group/conversions.h"

namespace shoal::train {
namespace {

using std::chrono::steady_clock;

/// Returns false if the ranks could not agree whether to continue.
bool make_steps(Entry& entry, std::int64_t steps, const TurnTools& tools, TurnEnd& end) {
  Replica& replica = *entry.replica;
  std::int64_t& made = end.turn.sums.steps;
  const bool traces = tools.wants_trace && entry.warm && !entry.traced;
  // Not the first step of a turn: averages of the previous step must be in flight.
  const std::int64_t traced_step = traces ? std::min<std::int64_t>(1, steps - 1) : -1;
  for (bool stopping = false; made < steps && !stopping; ++made) {
    if (end.status = tools.common_stop.ask(); !end.status.ok()) return false;
    const bool trace = made == traced_step;
    const double rate = tools.rate_of(replica.step());
    const double loss = trace ? replica.make_traced_step(rate) : replica.make_step(rate);
    end.turn.losses.push_back(loss);
    if (tools.books != nullptr) tools.books->add({.number = replica.step(), .loss = loss, .end = steady_clock::now()});
    entry.traced = entry.traced || trace;
    end.turn.sums.add(replica.take_comm());
    const Result<bool> answer = tools.common_stop.answer();
    end.status = answer.status();
    end.stopped = answer.ok() && answer.value();
    stopping = !answer.ok() || end.stopped;
  }
  return true;
}

}  // namespace

TurnEnd make_turn(Entry& entry, std::int64_t steps, const TurnTools& tools) {
  Replica& replica = *entry.replica;
  TurnEnd end{.turn = {.measured = entry.warm, .knows_comm = replica.knows_comm()}};
  Measured& sums = end.turn.sums;
  const double cpu_before = cpu_seconds();
  (void)tools.gpu.take_percent();
  const auto start = steady_clock::now();
  try {
    if (!make_steps(entry, steps, tools, end)) return end;
    replica.flush();  // a turn includes the end of everything that it has begun
    sums.add(replica.take_comm());
    if (entry.traced && entry.trace.empty()) entry.trace = replica.finish_trace();
  } catch (const std::exception& error) {
    end.broke_off = Status(code_of(error), replica.wanted().backend + ", step " + std::to_string(replica.step() + 1) + ": " +
                                               torch::plain_message(error));
    return end;
  }
  if (!end.status.ok()) return end;
  sums.seconds = std::chrono::duration<double>(steady_clock::now() - start).count();
  sums.cpu_s = cpu_seconds() - cpu_before;
  end.turn.gpu_percent = tools.gpu.take_percent();
  entry.warm = true;
  return end;
}

}  // namespace shoal::train
