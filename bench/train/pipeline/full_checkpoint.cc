#include "bench/train/pipeline/full_checkpoint.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "bench/train/checkpoint.h"
#include "bench/train/epoch_plan.h"
#include "src/pipeline/batch_norm.h"

namespace shoal::train {
namespace {

using nlohmann::json;

constexpr const char* kReplicaInFull = "shoal+next_forward";  // the backend that shoal_train has by default
constexpr std::int64_t kMostImages = std::int64_t{1} << 32;

/// For tensors under other names, as in a network in Python: the names in the order of this network.
json names_of(const models::ModelInfo& info, const data::Dataset& images) {
  const at::Tensor generator = parallel::generator_of(0).value;  // to make a network draws numbers
  const auto network = info.make(images.channels, images.classes);
  parallel::set_generator(generator);
  json names{{"parameters", json::array()}, {"buffers", json::array()}};
  for (const auto& named : network->named_parameters()) names["parameters"].push_back(named.key());
  for (const auto& named : network->named_buffers()) names["buffers"].push_back(named.key());
  return names;
}

/// Of several backends, which have trained alike, one that pipelines have, too.
const Tensors& replica_of(const Checkpoint& checkpoint) {
  const auto of_shoal =
      std::ranges::find_if(checkpoint.replicas, [](const auto& each) { return each.first.starts_with("shoal"); });
  return (of_shoal != checkpoint.replicas.end() ? of_shoal : checkpoint.replicas.begin())->second;
}

/// Moves a whole number out of the settings; 1 if it is not there.
Result<std::int64_t> take_number(json& settings, const char* key) {
  std::int64_t number = 1;
  if (const auto found = settings.find(key); found != settings.end()) {
    if (!found->is_number_unsigned() || found->get<std::uint64_t>() > static_cast<std::uint64_t>(kMostImages)) {
      return Status(StatusCode::invalid_argument,
                    "its '" + std::string(key) + "' is not a whole number up to " + std::to_string(kMostImages));
    }
    number = found->get<std::int64_t>();
    settings.erase(found);
  }
  return number;
}

Result<json> about_of(json settings, const at::Tensor& step, const data::Dataset& images) {
  if (!step.defined() || !is_like(step, at::scalar_tensor(0, at::kLong)) || step.item<std::int64_t>() < 0)
    return Status(StatusCode::invalid_argument, "it contains no number of steps");
  json about{{"step", static_cast<std::uint64_t>(step.item<std::int64_t>())}};
  for (const char* const key : {"ranks", "batch", "accumulate"}) {
    const Result<std::int64_t> number = take_number(settings, key);
    if (!number.ok()) return number.status();
    about[key] = static_cast<std::uint64_t>(*number);
  }
  about["replicas"] = about["ranks"];
  if (const auto course = settings.find("course"); course != settings.end()) about["course"] = *course;
  settings["batch"] = about["batch"].get<std::uint64_t>() * about["accumulate"].get<std::uint64_t>();
  // What training without a pipeline has in any case. The shapes of the tensors show which images the network takes.
  const json fixed{{"channels", images.channels},
                   {"classes", images.classes},
                   {"clip_norm", "none"},
                   {"batch_norm", to_string(pipeline::BatchNormStatistics::microbatch)}};
  for (const auto& [key, value] : fixed.items()) {
    if (!settings.contains(key)) settings[key] = value;
  }
  about["settings"] = std::move(settings);
  return about;
}

}  // namespace

Status write_full(const parallel::StoredCheckpoint& checkpoint, const models::ModelInfo& model, const data::Dataset& images,
                  json settings, std::int64_t step) {
  std::vector<parallel::ModelTensor> wanted;
  std::set<std::string> names;
  for (const parallel::StoredTensor& stored : checkpoint.manifest.tensors) {
    if (!stored.name.starts_with("generator/") && names.insert(stored.name).second) wanted.push_back({stored.name, {}, {}});
  }
  const Result<std::vector<at::Tensor>> found = parallel::read_tensors(checkpoint, wanted);
  if (!found.ok()) return found.status();
  Checkpoint full{.settings = std::move(settings), .replicas = {}};
  full.settings["names"] = names_of(model, images);
  Tensors& tensors = full.replicas[kReplicaInFull];
  for (std::size_t i = 0; i < wanted.size(); ++i) tensors[wanted[i].name] = (*found)[i];
  tensors["step"] = at::scalar_tensor(step, at::kLong);
  return save_checkpoint(full, checkpoint.folder + "/full.pt");
}

Result<FullCheckpoint> read_full(const Job& job, const std::string& path, const data::Dataset& images) {
  const Result<Checkpoint> read = load_checkpoint(path, *job.control);
  if (!read.ok()) return read.status();
  FullCheckpoint full{.about = {}, .tensors = replica_of(*read)};
  const auto step = full.tensors.extract("step");
  Result<json> about = about_of(read->settings, step.empty() ? at::Tensor() : step.mapped(), images);
  if (!about.ok()) return Status(about.status().code(), path + ": " + about.status().message());
  full.about = *std::move(about);
  return full;
}

}  // namespace shoal::train
