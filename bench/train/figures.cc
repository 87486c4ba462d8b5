#include "bench/train/figures.h"

#include <span>

#include <sys/resource.h>

#include <nlohmann/json.hpp>

namespace shoal::train {

void Measured::add(const CommTimes& more) {
  comm.exposed_s += more.exposed_s;
  comm.busy_s += more.busy_s;
  comm.bytes += more.bytes;
}

void Measured::add(const Measured& more) {
  steps += more.steps;
  seconds += more.seconds;
  cpu_s += more.cpu_s;
  add(more.comm);
}

void Figures::add(const Turn& turn) {
  losses.insert(losses.end(), turn.losses.begin(), turn.losses.end());
  if (!turn.measured) return;
  sums.add(turn.sums);
  turn_rates.push_back(turn.images_per_s);
  if (turn.gpu_percent.has_value()) gpu_percents.push_back(*turn.gpu_percent);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Status average(Communicator& control, std::vector<double>& values) {
  return control.all_reduce(values.data(), values.data(), values.size(), DataType::float64, ReduceOp::avg);
}

Status average(Communicator& control, Turn& turn) {
  Measured& sums = turn.sums;
  std::vector<double> figures = turn.losses;  // all in one message
  const double knows_gpu = turn.gpu_percent.has_value() ? 1 : 0;
  for (const double figure :
       {sums.seconds, sums.cpu_s, sums.comm.exposed_s, sums.comm.busy_s, knows_gpu, turn.gpu_percent.value_or(0)})
    figures.push_back(figure);
  if (const Status status = average(control, figures); !status.ok()) return status;
  const auto means = std::span(figures).subspan(turn.losses.size());
  sums.seconds = means[0];
  sums.cpu_s = means[1];
  sums.comm.exposed_s = means[2];
  sums.comm.busy_s = means[3];
  turn.gpu_percent = means[4] > 0 ? std::optional(means[5] / means[4]) : std::nullopt;
  figures.resize(turn.losses.size());
  turn.losses = std::move(figures);
  return {};
}

nlohmann::json to_json(const Turn& turn) {
  const auto if_known = [&](double seconds) { return turn.knows_comm ? nlohmann::json(seconds) : nlohmann::json(nullptr); };
  return {{"steps", turn.sums.steps},
          {"measured", turn.measured},
          {"seconds", turn.sums.seconds},
          {"images_per_s", turn.images_per_s},
          {"cpu_s", turn.sums.cpu_s},
          {"gpu_percent", or_null(turn.gpu_percent)},
          {"comm_exposed_s", if_known(turn.sums.comm.exposed_s)},
          {"comm_busy_s", if_known(turn.sums.comm.busy_s)},
          {"bytes", turn.sums.comm.bytes},
          {"loss", turn.losses.back()}};
}

EpochResult to_result(const Figures& epoch) {
  EpochResult result;
  result.steps = epoch.sums.steps;
  result.seconds = epoch.sums.seconds;
  result.images_per_s = median(epoch.turn_rates);
  result.comm_exposed_s = epoch.sums.comm.exposed_s;
  result.comm_busy_s = epoch.sums.comm.busy_s;
  result.gpu_percent = median(epoch.gpu_percents);
  result.bytes = static_cast<double>(epoch.sums.comm.bytes);
  if (epoch.sums.seconds > 0) result.cpu_percent = 100 * epoch.sums.cpu_s / epoch.sums.seconds;
  for (const double loss : epoch.losses) result.loss += loss / static_cast<double>(epoch.losses.size());
  result.step_loss = epoch.losses;
  return result;
}

}  // namespace shoal::train
