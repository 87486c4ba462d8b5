#include "bench/train/run.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <iomanip>
#include <sstream>

#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>

#include "bench/train/cuda.h"
#include "bench/train/device.h"
#include "bench/train/machine.h"
#include "bench/train/model_profile.h"
#include "bench/train/page.h"
#include "bench/train/pipeline/pipeline_run.h"
#include "bench/train/trainer.h"

namespace shoal::train {
namespace {

constexpr int kFailed = 1;
constexpr int kInterrupted = 130;  // the exit status that shells report after Ctrl-C

int fail(const Status& status) {
  std::fprintf(stderr, "shoal_train: %s\n", status.message().c_str());
  return kFailed;
}

/// 1234567 as "1,234,567".
std::string grouped(std::int64_t number) {
  if (number < 1000) return std::to_string(number);
  const std::string last = std::to_string(1000 + number % 1000);
  return grouped(number / 1000) + "," + last.substr(1);
}

/// The losses of ranks, and the fingerprints that show that the survivors have the same network.
void add_survival(nlohmann::json& object, const Job& job, const TrainOutcome& outcome) {
  object["losses"] = nlohmann::json::array();
  for (const Loss& loss : outcome.losses) object["losses"].push_back(to_json(loss));
  object["replicas"] = nlohmann::json::array();
  for (std::size_t i = 0; i < outcome.fingerprints.size() && i < job.places.size(); ++i) {
    std::array<char, 17> hex{};
    (void)std::snprintf(hex.data(), hex.size(), "%016llx", static_cast<unsigned long long>(outcome.fingerprints[i]));
    object["replicas"].push_back({{"rank", job.places[i]}, {"parameters", hex.data()}});
  }
}

/// The object of --json.
nlohmann::json describe_run(const Job& job, const data::Located& images, const TrainOptions& options,
                            const TrainOutcome& outcome) {
  nlohmann::json object = to_json(describe_machine(), options.command, outcome.results);
  object["data"] = {{"words", data::describe(images)},
                    {"kind", data::name_of(images.kind)},
                    {"train_images", images.train.size()},
                    {"test_images", images.test.size()}};
  object["turns"] = outcome.turns;
  if (options.survives()) add_survival(object, job, outcome);
  if (!outcome.gpu_why_not.empty()) object["machine"]["gpu_utilisation"] = "not measured: " + outcome.gpu_why_not;
  if (!job.device.is_cpu()) {
    if (const Result<CudaModule> module = open_cuda(); module.ok()) {
      std::string version;
      module->nccl_version(&version);
      object["machine"]["nccl"] = version;
    }
  }
  return object;
}

/// Whether a backend needs c10d's store for its rendezvous.
bool needs_store(const TrainOptions& options) {
  return std::ranges::any_of(
      options.replicas, [](const ReplicaOptions& replica) { return replica.backend == "gloo" || replica.backend == "nccl"; });
}

/// The results of one rank, on rank 0; null on other ranks, or if none are requested. Collective, before training: a missing
/// file must not be detected only after hours of training.
Result<nlohmann::json> read_alone(const Job& job, const TrainOptions& options) {
  if (options.alone.empty()) return nlohmann::json();
  Result<nlohmann::json> read = job.rank() == 0 ? read_results(options.alone) : Result<nlohmann::json>(nlohmann::json());
  std::uint8_t good = read.ok() ? 1 : 0;
  if (const Status told = job.control->broadcast(&good, 1, DataType::uint8, 0); !told.ok()) return told;
  if (!read.ok()) return Status(read.status().code(), "--alone " + read.status().message());
  if (good == 0) return Status(StatusCode::invalid_argument, "--alone " + options.alone + ": rank 0 could not read it");
  return read;
}

void add_speedups(std::vector<EpochResult>& results, const nlohmann::json& alone, const std::string& path) {
  bool some = false;
  for (EpochResult& result : results) {
    const std::optional<double> rate = images_per_s_alone(alone, result);
    if (!rate.has_value() || *rate <= 0 || !result.images_per_s.has_value()) continue;
    result.speedup_vs_1 = *result.images_per_s / *rate;
    some = true;
  }
  if (some) return;
  std::fprintf(stderr,
               "shoal_train: --alone %s: has no row of one rank with this network, images, batch, device and threads; no "
               "speed-ups are computed\n",
               path.c_str());
}

/// Trains as the options say: replicas of the network, or pipelines.
TrainOutcome train_as_asked(Job& job, const models::ModelInfo& model, const data::Located& images, const TrainOptions& options,
                            const std::atomic<bool>& stop) {
  if (!options.parallel.wanted()) return train(job, model, images, options, stop);
  const Result<PipelinePlan> plan = make_plan(job, model, images.train, options);
  if (!plan.ok()) {
    TrainOutcome refused;
    refused.status = plan.status();
    return refused;
  }
  return train_pipeline(job, *plan, model, images, options, stop);
}

std::string model_line(const std::string& name, const std::string& parameters, const std::string& tensors,
                       const std::string& bytes, const std::string& description) {
  std::ostringstream line;
  line << std::left << std::setw(20) << name << std::right << std::setw(12) << parameters << std::setw(9) << tensors
       << std::setw(13) << bytes << "  " << description << "\n";
  return line.str();
}

}  // namespace

std::string list_models() {
  std::string list = model_line("model", "parameters", "tensors", "bytes", "description (sizes for 3 channels and 10 classes)");
  for (const models::ModelInfo& model : models::all_models()) {
    const models::ModelSize size = models::measure(*model.make(3, 10));
    list +=
        model_line(model.name, grouped(size.parameters), std::to_string(size.tensors), grouped(size.bytes), model.description);
  }
  return list;
}

int run(const TrainOptions& options, const std::atomic<bool>& stop) {
  const Result<models::ModelInfo> model = models::find_model(options.model);
  if (!model.ok()) return fail(model.status());
  const Result<data::Located> images = data::locate(options.dataset, options.data_folder);
  if (!images.ok()) return fail(images.status());
  Result<Job> job =
      join_job(std::chrono::milliseconds(static_cast<std::int64_t>(1e3 * options.timeout_s)), needs_store(options));
  if (!job.ok()) return fail(job.status());

  if (const Result<at::Device> device = choose_device(*job, options); device.ok())
    job->device = *device;
  else
    return fail(device.status());
  const Result<nlohmann::json> alone = read_alone(*job, options);
  if (!alone.ok()) return fail(alone.status());
  const auto speaks = [&job] { return job->rank() == 0; };  // another rank prints after the loss of rank 0
  const Result<int> neighbours = ranks_on_these_cores(*job);
  if (!neighbours.ok()) return fail(neighbours.status());
  const int threads = options.threads > 0 ? options.threads : std::max(1, allowed_cores() / neighbours.value());
  at::set_num_threads(threads);
  if (speaks()) {
    const models::ModelSize size = models::measure(*model->make(images->train.channels, images->train.classes));
    std::printf("%s, %lld parameters, on %s: %zu images for training, %zu for testing, from %s\n", model->name.c_str(),
                static_cast<long long>(size.parameters), images->train.name.c_str(), images->train.size(), images->test.size(),
                images->origin.c_str());
    std::printf("%d ranks on %d nodes, %d images a step%s, %d threads each, on %s\n", job->size(), job->control->nodes(),
                options.batch, options.parallel.wanted() ? " of a pipeline" : " each", threads,
                job->device.is_cpu() ? "the processor" : "a GPU each");
    std::fflush(stdout);
  }
  if (!options.profile_out.empty()) {
    const Status profiled = write_profile(*job, *model, images->train, options);
    return profiled.ok() ? 0 : fail(profiled);
  }

  TrainOutcome outcome = train_as_asked(*job, *model, *images, options, stop);
  if (speaks() && !outcome.results.empty()) {
    if (!options.alone.empty()) add_speedups(outcome.results, *alone, options.alone);
    std::fputs(to_table(outcome.results).c_str(), stdout);
    std::fflush(stdout);
    const nlohmann::json object = describe_run(*job, *images, options, outcome);
    if (!options.json.empty()) {
      const Status written = write_json(object, options.json);
      if (!written.ok()) return fail(written);
    }
    if (!options.plot.empty()) {
      const Status drawn = draw_plot(object, options.plot);
      if (!drawn.ok()) return fail(drawn);
    }
  }
  if (!outcome.status.ok()) return fail(outcome.status);
  if (outcome.interrupted) {
    if (speaks()) std::fprintf(stderr, "shoal_train: interrupted\n");
    return kInterrupted;
  }
  return outcome.misses_files ? kFailed : 0;
}

}  // namespace shoal::train
