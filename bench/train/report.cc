#include "bench/train/report.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <ios>
#include <utility>

namespace shoal::train {
namespace {

/// nccl-tests' bus bandwidth of all_reduce: the load of each link, independent of the algorithm.
std::optional<double> bus_bandwidth_gbs(const EpochResult& result) {
  if (!result.knows_comm || result.ranks < 2 || result.comm_busy_s <= 0) return std::nullopt;
  return result.bytes * 2 * (result.ranks - 1) / result.ranks / result.comm_busy_s / 1e9;
}

std::string hex_of(std::uint64_t number) {
  std::array<char, 17> hex{};
  (void)std::snprintf(hex.data(), hex.size(), "%016llx", static_cast<unsigned long long>(number));
  return hex.data();
}

nlohmann::json to_json(const parallel::ComputedAction& action) {
  const auto milliseconds = [](double seconds) { return std::round(1e6 * seconds) / 1e3; };
  return {{"op", action.is_backward ? "B" : "F"},
          {"stage", action.stage},
          {"microbatch", action.microbatch},
          {"begin_ms", milliseconds(action.begin_s)},
          {"end_ms", milliseconds(action.end_s)}};
}

nlohmann::json to_json(const PipelineResult& pipeline) {
  nlohmann::json ranks = nlohmann::json::array();
  for (const RankResult& rank : pipeline.ranks) {
    nlohmann::json last_step = nlohmann::json::array();
    for (const parallel::ComputedAction& action : rank.last_step) last_step.push_back(to_json(action));
    ranks.push_back({{"rank", rank.rank},
                     {"stage", rank.stage},
                     {"replica", rank.replica},
                     {"slice", rank.slice},
                     {"first_units", rank.first_units},
                     {"busy_ms", rank.busy_ms},
                     {"waiting_ms", rank.waiting_ms},
                     {"idle_ms", rank.idle_ms},
                     {"peak_bytes", rank.peak_bytes},
                     {"peak_bytes_predicted", rank.peak_bytes_predicted},
                     {"parameters", hex_of(rank.fingerprint)},
                     {"last_step", std::move(last_step)}});
  }
  return {{"pipeline", pipeline.schedule},
          {"partitions", pipeline.partitions},
          {"chunks", pipeline.chunks},
          {"microbatches", pipeline.microbatches},
          {"replicas", pipeline.replicas},
          {"tensor_parallel", pipeline.tensor_parallel},
          {"recompute", pipeline.recompute},
          {"recompute_units", pipeline.recompute_units},
          {"batch_norm", pipeline.batch_norm},
          {"bubble", or_null(pipeline.bubble)},
          {"bubble_predicted", pipeline.bubble_predicted},
          {"link_latency_us", pipeline.link_latency_us},
          {"link_bytes_per_us", or_null(pipeline.link_bytes_per_us)},
          {"peak_bytes", pipeline.peak_bytes},
          {"peak_bytes_predicted", pipeline.peak_bytes_predicted},
          {"pipeline_ranks", ranks}};
}

nlohmann::json to_json(const EpochResult& result) {
  nlohmann::json object{{"backend", result.backend},
                        {"overlap", result.overlap},
                        {"model", result.model},
                        {"dataset", result.dataset},
                        {"ranks", result.ranks},
                        {"nodes", result.nodes},
                        {"rate", or_null(result.rate)},
                        {"device", result.device},
                        {"threads", result.threads},
                        {"batch_per_rank", result.batch_per_rank},
                        {"epoch", result.epoch},
                        {"epoch_steps", result.epoch_steps},
                        {"steps", result.steps},
                        {"seconds", result.seconds},
                        {"images_per_s", or_null(result.images_per_s)},
                        {"comm_exposed_s", result.knows_comm ? nlohmann::json(result.comm_exposed_s) : nlohmann::json(nullptr)},
                        {"comm_busy_s", result.knows_comm ? nlohmann::json(result.comm_busy_s) : nlohmann::json(nullptr)},
                        {"bytes", result.bytes},
                        {"busbw_gbs", or_null(bus_bandwidth_gbs(result))},
                        {"cpu_percent", or_null(result.cpu_percent)},
                        {"gpu_percent", or_null(result.gpu_percent)},
                        {"loss", result.loss},
                        {"accuracy", or_null(result.accuracy)},
                        {"speedup_vs_1", or_null(result.speedup_vs_1)},
                        {"step_loss", result.step_loss}};
  if (result.pipeline.has_value()) object.update(to_json(*result.pipeline));
  return object;
}

std::string cell(const char* format, const std::optional<double>& value) {
  if (!value.has_value()) return "-";
  std::array<char, 64> text{};
  (void)std::snprintf(text.data(), text.size(), format, *value);
  return text.data();
}

/// The largest difference between two loss curves, relative to the first.
double largest_difference(const std::vector<double>& first, const std::vector<double>& other) {
  double largest = 0;
  for (std::size_t step = 0; step < std::min(first.size(), other.size()); ++step) {
    largest = std::max(largest, std::abs(first[step] - other[step]) / std::max(std::abs(first[step]), 1e-30));
  }
  return largest;
}

/// Every replica's last epoch, in the order of first appearance.
std::vector<const EpochResult*> last_epochs(const std::vector<EpochResult>& results) {
  std::vector<const EpochResult*> last;
  for (const EpochResult& result : results) {
    const auto same = std::ranges::find_if(
        last, [&](const EpochResult* known) { return known->backend == result.backend && known->overlap == result.overlap; });
    if (same == last.end())
      last.push_back(&result);
    else
      *same = &result;
  }
  return last;
}

/// The backend's name, with the overlap if the name alone is ambiguous.
std::string name_among(const std::vector<const EpochResult*>& results, const EpochResult& result) {
  const auto same = std::ranges::count(results, result.backend, &EpochResult::backend);
  return same == 1 ? result.backend : result.backend + "+" + result.overlap;
}

/// A field of a row that this program reads.
struct Field {
  const char* name;
  const char* what;
  bool (*fits)(const nlohmann::json& value);
};
bool is_text(const nlohmann::json& value) { return value.is_string(); }
bool is_whole(const nlohmann::json& value) { return value.is_number_integer(); }
bool is_number_or_null(const nlohmann::json& value) { return value.is_number() || value.is_null(); }
constexpr std::array<Field, 8> kFields{{{"backend", "text", is_text},
                                        {"model", "text", is_text},
                                        {"dataset", "text", is_text},
                                        {"device", "text", is_text},
                                        {"ranks", "a whole number", is_whole},
                                        {"threads", "a whole number", is_whole},
                                        {"batch_per_rank", "a whole number", is_whole},
                                        {"images_per_s", "a number or null", is_number_or_null}}};

/// The fault of a row of a file; empty if there is none. Fields may be missing: older versions wrote fewer.
std::string complaint_about(const nlohmann::json& row) {
  if (!row.is_object()) return "it is " + std::string(row.type_name()) + ", not an object";
  for (const Field& field : kFields) {
    const auto found = row.find(field.name);
    if (found != row.end() && !field.fits(*found))
      return "\"" + std::string(field.name) + "\" is " + found->type_name() + ", not " + field.what;
  }
  return {};
}

}  // namespace

nlohmann::json to_json(const nlohmann::json& machine, const std::string& command, const std::vector<EpochResult>& results) {
  nlohmann::json list = nlohmann::json::array();
  for (const EpochResult& result : results) list.push_back(to_json(result));
  return {{"machine", machine}, {"command", command}, {"results", list}};
}

Result<nlohmann::json> read_results(const std::string& path) {
  std::ifstream file(path);
  if (!file) return Status(StatusCode::not_found, path + ": could not be read");
  nlohmann::json object;
  try {
    object = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  } catch (const std::ios_base::failure& error) {  // a folder, for one
    return Status(StatusCode::system_error, path + ": could not be read: " + error.code().message());
  }
  if (!object.is_object() || !object.contains("results") || !object["results"].is_array())
    return Status(StatusCode::invalid_argument, path + ": does not contain results of shoal_train --json");
  for (std::size_t row = 0; row < object["results"].size(); ++row) {
    const std::string wrong = complaint_about(object["results"][row]);
    if (wrong.empty()) continue;
    return Status(StatusCode::invalid_argument,
                  path + ": row " + std::to_string(row + 1) + " is not a result of shoal_train --json: " + wrong);
  }
  return object;
}

std::optional<double> images_per_s_alone(const nlohmann::json& alone, const EpochResult& result) {
  const nlohmann::json wanted = to_json(result);
  std::optional<double> found;
  bool found_backend = false;
  for (const nlohmann::json& row : alone["results"]) {
    const auto same = [&](const char* key) { return row.value(key, nlohmann::json()) == wanted[key]; };
    const bool fits = same("model") && same("dataset") && same("batch_per_rank") && same("device") && same("threads");
    const nlohmann::json rate = row.value("images_per_s", nlohmann::json());
    if (!fits || row.value("ranks", nlohmann::json()) != 1 || !rate.is_number() || (found_backend && !same("backend")))
      continue;
    found = rate.get<double>();
    found_backend = same("backend");
  }
  return found;
}

Status write_text(const std::string& text, const std::string& path) {
  std::ofstream file(path);
  file << text;
  file.close();
  return file ? Status() : system_error("write " + path, errno);
}

Status write_json(const nlohmann::json& object, const std::string& path) { return write_text(object.dump(1) + '\n', path); }

std::optional<double> median(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::string to_table(const std::vector<EpochResult>& results) {
  std::array<char, 256> line{};
  (void)std::snprintf(line.data(), line.size(), "%-8s %-12s %12s %12s %14s %14s %12s %10s %10s %10s\n", "backend", "overlap",
                      "images/s", "x one rank", "exposed ms", "comm ms", "busbw GB/s", "cpu %", "loss", "accuracy");
  std::string table = line.data();
  const std::vector<const EpochResult*> last = last_epochs(results);
  for (const EpochResult* result : last) {
    const double steps = static_cast<double>(std::max<std::int64_t>(result->steps, 1));
    const auto step_ms = [&](double seconds) {
      return result->knows_comm ? cell("%.1f", 1e3 * seconds / steps) : cell("", std::nullopt);
    };
    (void)std::snprintf(line.data(), line.size(), "%-8s %-12s %12s %12s %14s %14s %12s %10s %10.4f %10s\n",
                        result->backend.c_str(), result->overlap.c_str(), cell("%.1f", result->images_per_s).c_str(),
                        cell("%.2f", result->speedup_vs_1).c_str(), step_ms(result->comm_exposed_s).c_str(),
                        step_ms(result->comm_busy_s).c_str(), cell("%.3f", bus_bandwidth_gbs(*result)).c_str(),
                        cell("%.0f", result->cpu_percent).c_str(), result->loss, cell("%.4f", result->accuracy).c_str());
    table += line.data();
  }
  for (std::size_t other = 1; other < last.size(); ++other) {
    if (!last[0]->images_per_s.has_value() || !last[other]->images_per_s.has_value()) continue;
    (void)std::snprintf(line.data(), line.size(),
                        "%s: %.2f x the images/s of %s; their loss curves differ by at most %.1e (relative)\n",
                        name_among(last, *last[0]).c_str(), *last[0]->images_per_s / *last[other]->images_per_s,
                        name_among(last, *last[other]).c_str(), largest_difference(last[0]->step_loss, last[other]->step_loss));
    table += line.data();
  }
  return table;
}

}  // namespace shoal::train
