#include "src/bootstrap/launch.h"

#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "src/bootstrap/pmix.h"
#include "src/settings/settings.h"

namespace shoal {
namespace {

// torchrun's own store listens on MASTER_PORT; ours is next to it at a fixed distance.
constexpr int kPortsAfterTorchrun = 29;
constexpr int kSlurmFirstPort = 20000;
constexpr int kSlurmPorts = 20000;

std::string get(const Environment& environment, const char* name) {
  const char* value = environment(name);
  return value == nullptr ? std::string() : std::string(value);
}

Result<int> number(const Environment& environment, const char* name, int low, int high) {
  const std::string text = get(environment, name);
  if (text.empty()) return Status(StatusCode::invalid_argument, fmt::format("{} is not set; the launcher should set it", name));
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    return Status(StatusCode::invalid_argument, fmt::format("{}='{}' is not a number from {} to {}", name, text, low, high));
  }
  return value;
}

constexpr int kMaxRanks = 65536;

// SHOAL_MASTER_ADDR and SHOAL_MASTER_PORT win over whatever the launcher says.
Status override_master(const Environment& environment, Launch* launch) {
  if (const std::string host = get(environment, "SHOAL_MASTER_ADDR"); !host.empty()) launch->master_host = host;
  if (environment("SHOAL_MASTER_PORT") != nullptr) {
    const auto port = number(environment, "SHOAL_MASTER_PORT", 1, 65535);
    if (!port.ok()) return port.status();
    launch->master_port = *port;
  }
  if (const std::string job = get(environment, "SHOAL_JOB_ID"); !job.empty()) launch->job = job;
  return {};
}

Status read_rank_and_size(const Environment& environment, const char* rank_name, const char* size_name, Launch* launch) {
  const auto size = number(environment, size_name, 1, kMaxRanks);
  if (!size.ok()) return size.status();
  const auto rank = number(environment, rank_name, 0, *size - 1);
  if (!rank.ok()) return rank.status();
  launch->rank = *rank;
  launch->size = *size;
  return {};
}

}  // namespace

std::string first_slurm_host(const std::string& node_list) {
  const std::size_t bracket = node_list.find('[');
  const std::size_t comma = node_list.find(',');
  if (bracket == std::string::npos || comma < bracket) return node_list.substr(0, comma);
  const std::size_t end = node_list.find_first_of("-,]", bracket);
  if (end == std::string::npos) return {};
  const std::size_t close = node_list.find(']', bracket);
  if (close == std::string::npos) return {};
  const std::size_t suffix_end = node_list.find(',', close);
  const std::string suffix = node_list.substr(close + 1, suffix_end == std::string::npos ? std::string::npos : suffix_end - close - 1);
  return node_list.substr(0, bracket) + node_list.substr(bracket + 1, end - bracket - 1) + suffix;
}

Result<Launch> detect_launch(const Environment& environment) {
  Launch launch;
  Status status;
  if (environment("SHOAL_RANK") != nullptr) {
    launch.launcher = "shoal run";
    status = read_rank_and_size(environment, "SHOAL_RANK", "SHOAL_SIZE", &launch);
  } else if (environment("OMPI_COMM_WORLD_RANK") != nullptr) {
    launch.launcher = "mpirun";
    launch.job = get(environment, "PMIX_NAMESPACE");
    status = read_rank_and_size(environment, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", &launch);
  } else if (environment("RANK") != nullptr && environment("WORLD_SIZE") != nullptr) {
    launch.launcher = "torchrun";
    launch.job = get(environment, "TORCHELASTIC_RUN_ID");
    launch.master_host = get(environment, "MASTER_ADDR");
    status = read_rank_and_size(environment, "RANK", "WORLD_SIZE", &launch);
    if (status.ok() && launch.size > 1 && environment("SHOAL_MASTER_PORT") == nullptr) {
      const auto port = number(environment, "MASTER_PORT", 1, 65535 - kPortsAfterTorchrun);
      if (port.ok()) launch.master_port = *port + kPortsAfterTorchrun;
      else status = port.status();
    }
  } else if (environment("SLURM_PROCID") != nullptr && environment("SLURM_STEP_NUM_TASKS") != nullptr) {
    launch.launcher = "srun";
    launch.job = get(environment, "SLURM_JOB_ID") + "." + get(environment, "SLURM_STEP_ID");
    launch.master_host = first_slurm_host(get(environment, "SLURM_STEP_NODELIST"));
    status = read_rank_and_size(environment, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", &launch);
    if (const auto id = number(environment, "SLURM_JOB_ID", 0, 2147483647); status.ok() && id.ok()) {
      launch.master_port = kSlurmFirstPort + *id % kSlurmPorts;
    }
  } else {
    launch.launcher = "none";
    return launch;
  }
  if (status.ok()) status = override_master(environment, &launch);
  if (!status.ok()) return Status(status.code(), fmt::format("environment of {}: {}", launch.launcher, status.message()));
  const bool needs_address = launch.size > 1 && launch.launcher != "mpirun";
  if (needs_address && (launch.master_host.empty() || launch.master_port == 0)) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("environment of {}: no address for rank 0; set SHOAL_MASTER_ADDR and SHOAL_MASTER_PORT", launch.launcher));
  }
  return launch;
}

Result<std::unique_ptr<Store>> open_store(const Launch& launch, std::chrono::steady_clock::time_point deadline) {
  if (!launch.master_host.empty() && launch.master_port != 0) {
    return make_tcp_store(launch.master_host, launch.master_port, launch.rank == 0, launch.job, deadline);
  }
  return open_pmix_store(launch, deadline);
}

}  // namespace shoal
