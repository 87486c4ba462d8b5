#include "bench/train/model_profile.h"

#include <cstdio>
#include <string>

#include <nlohmann/json.hpp>

#include "bench/train/machine.h"
#include "bench/train/report.h"
#include "torch_plugin/parallel/profiler/profiler.h"

namespace shoal::train {
namespace {

/// The processor and how many of its cores this process may use; a profile from another machine is of little use.
std::string machine_of_profile() {
  const nlohmann::json machine = describe_machine();
  const std::string cpu = machine["cpu"].is_string() ? machine["cpu"].get<std::string>() : "unknown processor";
  return cpu + ", " + std::to_string(allowed_cores()) + " cores";
}

Status measure_and_write(at::Device device, const models::ModelInfo& info, const data::Dataset& images,
                         const TrainOptions& options) {
  if (options.precision != "fp32") {
    return {StatusCode::unsupported, "--profile-out measures fp32 only; omit --precision " + options.precision};
  }
  ::torch::manual_seed(options.seed);
  const auto model = info.make(images.channels, images.classes);
  model->to(device);
  const Result<parallel::Chain> chain = parallel::Chain::of(model->parts());
  if (!chain.ok()) return chain.status();
  const at::Tensor microbatch =
      at::randn({options.batch, images.channels, images.height, images.width}).to(device);  // times do not depend on the values
  Result<pipeline::Profile> profile = parallel::profile(*chain, microbatch);
  if (!profile.ok()) return {profile.status().code(), "--profile-out: " + profile.status().message()};
  profile->model = info.name;
  profile->classes = images.classes;
  profile->machine = machine_of_profile();
  if (const Status written = write_text(pipeline::to_json(*profile), options.profile_out); !written.ok()) return written;
  std::printf("wrote the costs of %d units, for %d images each, to %s\n", chain->size(), options.batch,
              options.profile_out.c_str());
  return {};
}

}  // namespace

Status write_profile(const Job& job, const models::ModelInfo& model, const data::Dataset& images, const TrainOptions& options) {
  const Status own = job.rank() == 0 ? measure_and_write(job.device, model, images, options) : Status();
  return of_rank_0(job, own, options.profile_out);
}

}  // namespace shoal::train
