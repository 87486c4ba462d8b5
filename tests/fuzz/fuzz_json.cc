// JSON texts from rank 0 or from files.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "src/communicator/job_config.h"
#include "src/selector/tuning.h"
#include "src/simulate/platform.h"

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
  return 0;
}
