// JSON texts from rank 0 or from files.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "src/communicator/job_config.h"
#include "src/pipeline/partition_file.h"
#include "src/pipeline/profile.h"
#include "src/selector/tuning.h"
#include "src/simulate/platform.h"
#include "torch_plugin/parallel/checkpoint/manifest.h"

using namespace shoal;  // NOLINT(google-build-using-namespace): the whole file is one function

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Key key = key_from_text("nobody's");
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto config = parse_job_config(text, key);
  if (config.ok()) std::abort();  // the check value cannot be guessed
  Topology topology = Topology::uniform(2, 2);
  if (read_costs(text, topology).ok()) {
    for (const LinkCost& cost : topology.cost) {
      if (!std::isfinite(cost.latency_us) || cost.us_per_byte < 0) std::abort();
    }
  }
  const auto tuning = parse_tuning(text);
  if (tuning.ok()) static_cast<void>(tuning->find(topology, "shm"));
  const auto shape = parse_tuned_shape(text);
  if (shape.ok() && shape->name().empty()) std::abort();
  const auto platform = parse_platform(text, "fuzz.json");
  if (platform.ok() && !check(*platform).ok()) std::abort();
  const auto profile = pipeline::parse_profile(text, "fuzz.json");
  if (profile.ok()) {
    if (!pipeline::parse_profile(pipeline::to_json(*profile), "fuzz.json").ok()) std::abort();
    pipeline::PartitionRequest request;
    request.rules.shape.microbatches = 3;
    const auto whole = pipeline::partition(*profile, request);
    if (whole.ok() && whole->stages.front().bytes < 0) std::abort();
    request.rules.recompute_units.rule = pipeline::Recompute::all;
    const auto recomputing = pipeline::partition(*profile, request);
    if (recomputing.ok() && recomputing->stages.front().bytes < 0) std::abort();
  }
  const auto partition = pipeline::parse_partition(text, "fuzz.json");
  if (partition.ok() && static_cast<int>(partition->cuts.size()) + 1 != partition->shape.stages()) std::abort();
  const auto manifest = parallel::parse_manifest(text, "fuzz.json");
  if (manifest.ok()) {
    const auto again = parallel::parse_manifest(parallel::to_json(*manifest), "fuzz.json");
    if (!again.ok() || again->tensors != manifest->tensors) std::abort();
    static_cast<void>(parallel::check_complete(*manifest, "fuzz.json"));
  }
  return 0;
}
