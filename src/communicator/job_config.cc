#include "src/communicator/job_config.h"

#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <shoal/shoal.h>

#include "src/base/printable.h"
#include "src/communicator/link_room.h"

namespace shoal {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kLongestName = 256;
constexpr std::size_t kSaltBytes = 64;

std::string own_version() { return fmt::format("{}.{}.{}", SHOAL_VERSION_MAJOR, SHOAL_VERSION_MINOR, SHOAL_VERSION_PATCH); }

std::string check_value(const Key& links) { return to_hex(derive_key(links, "check")); }

// Reads fields and remembers whether one was malformed.
class Reader {
 public:
  explicit Reader(const Json& json) : json_(json) {}

  std::uint64_t number(const char* name, std::uint64_t low, std::uint64_t high) {
    const auto found = json_.find(name);
    const bool good = found != json_.end() && found->is_number_unsigned();
    const std::uint64_t value = good ? found->get<std::uint64_t>() : low;
    good_ &= good && value >= low && value <= high;
    return value;
  }
  bool flag(const char* name) {
    const auto found = json_.find(name);
    const bool good = found != json_.end() && found->is_boolean();
    good_ &= good;
    return good && found->get<bool>();
  }
  std::string text(const char* name, std::size_t longest) {
    const auto found = json_.find(name);
    const bool good = found != json_.end() && found->is_string();
    std::string value = good ? found->get<std::string>() : std::string();
    good_ &= good && value.size() <= longest;
    return value;
  }
  [[nodiscard]] bool good() const { return good_; }

 private:
  const Json& json_;
  bool good_ = true;
};

Status malformed() { return {StatusCode::internal, "rank 0 published a malformed configuration"}; }

// A finite number of at least `least`, else NaN.
double number_in(const Json& value, double least) {
  const double number = value.is_number() ? value.get<double>() : std::nan("");
  return std::isfinite(number) && number >= least ? number : std::nan("");
}

}  // namespace

const char* to_string(Network network) noexcept {
  switch (network) {
    case Network::tcp:
      return "tcp";
    case Network::ofi:
      return "ofi";
    case Network::ucx:
      return "ucx";
    case Network::none:
      break;
  }
  return "";
}

Key link_key(const Key& job_key, const JobConfig& config) { return derive_key(job_key, "links", config.salt); }

std::string to_text(const JobConfig& config, const Key& job_key) {
  return Json{{"version", own_version()},
              {"job_id", config.job_id},
              {"algorithm", config.algorithm},
              {"use_shm", config.use_shm},
              {"network", static_cast<std::uint8_t>(config.network)},
              {"tile_bytes", config.tile_bytes},
              {"network_tile_bytes", config.network_tile_bytes},
              {"link_memory_bytes", config.link_memory_bytes},
              {"sockets_per_peer", config.sockets_per_peer},
              {"connect", static_cast<std::uint8_t>(config.connect)},
              {"integrity", static_cast<std::uint8_t>(config.integrity)},
              {"compression", static_cast<std::uint8_t>(config.compression)},
              {"encryption", config.encryption},
              {"single_copy", config.single_copy},
              {"probe", config.probe},
              {"overlay", config.overlay},
              {"numerics", static_cast<std::uint8_t>(config.numerics)},
              {"tuned", config.tuned},
              {"salt", config.salt},
              {"check", check_value(link_key(job_key, config))}}
      .dump();
}

Result<JobConfig> parse_job_config(const std::string& text, const Key& job_key) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return malformed();
  Reader read(json);
  JobConfig config;
  // First, because another version may write or interpret the other fields differently.
  if (const std::string version = read.text("version", kLongestName); read.good() && version != own_version()) {
    return Status(StatusCode::mismatch, fmt::format("rank 0 runs shoal {}, this rank {}; install the same version on all hosts",
                                                    printable(version), own_version()));
  }
  config.job_id = read.number("job_id", 0, ~std::uint64_t{0});
  config.algorithm = read.text("algorithm", kLongestName);
  config.use_shm = read.flag("use_shm");
  config.network = static_cast<Network>(read.number("network", 0, static_cast<std::uint64_t>(Network::ucx)));
  config.tile_bytes = read.number("tile_bytes", kLeastTileBytes, 8 << 20);
  config.network_tile_bytes = read.number("network_tile_bytes", config.tile_bytes, 8 << 20);
  config.link_memory_bytes = read.number("link_memory_bytes", kLeastLinkMemory, kMostLinkMemory);
  config.sockets_per_peer = static_cast<int>(read.number("sockets_per_peer", 1, 16));
  config.connect = static_cast<ConnectAtStart>(read.number("connect", 0, static_cast<std::uint64_t>(ConnectAtStart::none)));
  config.integrity = static_cast<Integrity>(read.number("integrity", 0, static_cast<std::uint64_t>(Integrity::measured)));
  config.compression =
      static_cast<Compression>(read.number("compression", 0, static_cast<std::uint64_t>(Compression::measured)));
  config.encryption = read.flag("encryption");
  config.single_copy = read.flag("single_copy");
  config.probe = read.flag("probe");
  config.overlay = read.flag("overlay");
  config.numerics = static_cast<Numerics>(read.number("numerics", 0, static_cast<std::uint64_t>(Numerics::strict)));
  config.tuned = read.flag("tuned");
  config.salt = read.text("salt", kSaltBytes);
  const std::string check = read.text("check", kSaltBytes);
  if (!read.good()) return malformed();
  if (check != check_value(link_key(job_key, config))) {
    return Status(
        StatusCode::mismatch,
        "rank 0 has another job key than this rank; start all ranks with the same SHOAL_JOB_KEY or SHOAL_JOB_KEY_FILE, "
        "or all without");
  }
  return config;
}

std::string costs_text(const Topology& topology) {
  Json costs{
      {"reduce", topology.reduce_us_per_byte}, {"cores", topology.cores_per_node}, {"one_copy_gain", topology.one_copy_gain}};
  for (const LinkCost& cost : topology.cost)
    costs["links"].push_back({cost.latency_us, cost.us_per_byte, cost.overhead_us, cost.burst_us_per_byte});
  return costs.dump();
}

Status read_costs(const std::string& text, Topology& topology) {
  const Status bad(StatusCode::internal, "rank 0 published malformed costs");
  const Json costs = Json::parse(text, nullptr, false);
  if (!costs.is_object() || !costs.contains("links") || !costs["links"].is_array() || !costs.contains("reduce") ||
      !costs.contains("cores") || !costs.contains("one_copy_gain") || costs["links"].size() != topology.cost.size()) {
    return bad;
  }
  Topology read = topology;
  read.reduce_us_per_byte = number_in(costs["reduce"], 0);
  read.cores_per_node = number_in(costs["cores"], 0);
  read.one_copy_gain = number_in(costs["one_copy_gain"], 0);
  double all = read.reduce_us_per_byte + read.cores_per_node + read.one_copy_gain;  // NaN if one of them is NaN
  for (std::size_t i = 0; i < read.cost.size(); ++i) {
    const Json& link = costs["links"][i];
    if (!link.is_array() || link.size() != 4) return bad;
    read.cost[i] = {number_in(link[0], 0), number_in(link[1], 0), number_in(link[2], -1), number_in(link[3], -1)};
    all += read.cost[i].latency_us + read.cost[i].us_per_byte + read.cost[i].overhead_us + read.cost[i].burst_us_per_byte;
  }
  if (std::isnan(all)) return bad;
  topology = std::move(read);
  return {};
}

}  // namespace shoal
