#include "bench/train/model_profile.h"

#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/version.h>
#include <nlohmann/json.hpp>

#include "bench/train/machine.h"
#include "bench/train/report.h"
#include "torch_plugin/parallel/batch_norm/fewest_values.h"
#include "torch_plugin/parallel/chain/probe.h"
#include "torch_plugin/parallel/profiler/profiler.h"
#include "torch_plugin/parallel/runtime/few_values.h"

namespace shoal::train {
namespace {

constexpr std::int64_t kImagesOfCheck = 2;  // batch normalisation needs as many

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
  const Result<pipeline::Profile> profile = describe_units(device, info, images, options, {.microbatch = options.batch});
  if (!profile.ok()) return {profile.status().code(), "--profile-out: " + profile.status().message()};
  if (const Status written = write_text(pipeline::to_json(*profile), options.profile_out); !written.ok()) return written;
  std::printf("wrote the costs of %zu units, for %d images each, to %s\n", profile->units.size(), options.batch,
              options.profile_out.c_str());
  return {};
}

/// Only microbatches of one image can have one value of each channel.
Status check_steps(const parallel::Chain& chain, const at::Tensor& images, const std::vector<parallel::Microbatches>& steps) {
  for (const parallel::Microbatches& step : steps) {
    if (step.sizes().back() > 1) continue;
    const Result<std::optional<parallel::FewestValues>> fewest = parallel::fewest_values(chain, images);
    if (!fewest.ok()) return fewest.status();
    if (!fewest->has_value()) return {};
    if (Status status = parallel::check_values(**fewest, step); !status.ok()) return status;
  }
  return {};
}

/// Names, sizes, and what the units return for `images`.
Result<pipeline::Profile> unmeasured(const parallel::Chain& chain, const at::Tensor& images) {
  const auto outputs = parallel::probe(chain, images);
  if (!outputs.ok()) return outputs.status();
  pipeline::Profile profile;
  for (const parallel::Part& part : chain.units()) {
    pipeline::Unit unit;
    unit.name = part.name;
    unit.output_shape = (*outputs)[profile.units.size()].shape;
    for (const auto& [name, parameter] : part.parameters()) {
      unit.parameter_bytes += static_cast<std::int64_t>(parameter.nbytes());
      profile.dtype = c10::getDtypeNames(parameter.scalar_type()).first;
    }
    profile.units.push_back(std::move(unit));
  }
  return profile;
}

}  // namespace

Result<pipeline::Profile> describe_units(at::Device device, const models::ModelInfo& info, const data::Dataset& images,
                                         const TrainOptions& options, const UnitsRequest& request) {
  ::torch::manual_seed(options.seed);
  const auto model = info.make(images.channels, images.classes);
  model->to(device);
  const Result<parallel::TensorSplit> split = parallel::split_pairs(*model, *model, model->pairs(), request.group);
  if (!split.ok()) return split.status();
  const Result<parallel::Chain> chain = parallel::Chain::of(model->parts());
  if (!chain.ok()) return chain.status();
  const auto random_images = [&](std::int64_t count) {
    return at::randn({count, images.channels, images.height, images.width}).to(device);
  };
  if (Status status = check_steps(*chain, random_images(kImagesOfCheck), request.steps); !status.ok()) return status;
  // Times do not depend on the values.
  Result<pipeline::Profile> described = request.measures ? parallel::profile(*chain, random_images(request.microbatch))
                                                         : unmeasured(*chain, random_images(kImagesOfCheck));
  if (!described.ok()) return described.status();
  pipeline::Profile profile = *std::move(described);
  profile.model = info.name;
  profile.classes = images.classes;
  profile.channels = images.channels;
  profile.microbatch = request.microbatch;
  profile.device = c10::DeviceTypeName(device.type(), /*lower_case=*/true);
  profile.threads = at::get_num_threads();
  profile.torch = TORCH_VERSION;
  profile.machine = machine_of_profile();
  return profile;
}

Status write_profile(const Job& job, const models::ModelInfo& model, const data::Dataset& images, const TrainOptions& options) {
  const Status own = job.rank() == 0 ? measure_and_write(job.device, model, images, options) : Status();
  return of_rank_0(job, own, options.profile_out);
}

}  // namespace shoal::train
