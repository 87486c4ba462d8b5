#include "src/join/launch.h"

#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include <shoal/limits.h>

#include "src/join/job_key.h"
#include "src/join/pmix.h"
#include "src/join/socket.h"
#include "src/join/tcp_store.h"
#include "src/settings/settings.h"

namespace shoal {
namespace {

// torchrun's own store listens on MASTER_PORT; ours is next to it at a fixed distance.
constexpr int kPortsAfterTorchrun = 29;
constexpr int kFirstPort = 20000;
constexpr int kFirstOfConnections = 32768;
constexpr int kLastOfConnections = 60999;

// torchrun --standalone may use any port; a port in the range of outgoing connections is moved below that range.
int beside_torchrun(int port) {
  const int next = port + kPortsAfterTorchrun;
  return next < kFirstOfConnections || next > kLastOfConnections ? next
                                                                 : port_below_connections(static_cast<std::uint64_t>(next));
}

std::string get(const Environment& environment, const char* name) {
  const char* value = environment(name);
  return value == nullptr ? std::string() : std::string(value);
}

// As for settings, an empty variable counts as one that is not set.
bool has(const Environment& environment, const char* name) { return !get(environment, name).empty(); }

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

// Rank 0's address may carry a port: "[::1]:4711", "node01:4711". An IPv6 address without brackets carries none.
Status split_master(const Environment& environment, Launch* launch) {
  std::string& host = launch->master_host;
  const std::size_t bracket = host.starts_with('[') ? host.find(']') : std::string::npos;
  const std::size_t colon = bracket != std::string::npos ? host.find(':', bracket) : host.find(':');
  const bool has_port = colon != std::string::npos && (bracket != std::string::npos || host.rfind(':') == colon);
  if (!has_port) {
    host = without_brackets(host);
    return {};
  }
  const std::string text = host;
  const auto port = number([&](const char*) { return text.c_str() + colon + 1; }, "the port of rank 0's address", 1, 65535);
  if (!port.ok()) return port.status();
  if (!has(environment, "SHOAL_MASTER_ADDR") || (has(environment, "SHOAL_MASTER_PORT") && launch->master_port != *port)) {
    return {StatusCode::invalid_argument,
            fmt::format("rank 0's address '{}' has a port, and another variable sets one; remove it from the address", text)};
  }
  launch->master_port = *port;
  host = without_brackets(text.substr(0, colon));
  return {};
}

// SHOAL_MASTER_ADDR and SHOAL_MASTER_PORT override the launcher's values.
Status override_master(const Environment& environment, Launch* launch) {
  if (const std::string host = get(environment, "SHOAL_MASTER_ADDR"); !host.empty()) launch->master_host = host;
  if (has(environment, "SHOAL_MASTER_PORT")) {
    const auto port = number(environment, "SHOAL_MASTER_PORT", 1, 65535);
    if (!port.ok()) return port.status();
    launch->master_port = *port;
  }
  if (const std::string job = get(environment, "SHOAL_JOB_ID"); !job.empty()) launch->job = job;
  return {};
}

Status read_rank_and_size(const Environment& environment, const char* rank_name, const char* size_name, Launch* launch) {
  const auto size = number(environment, size_name, 1, kMaxJobRanks);
  if (!size.ok()) return size.status();
  const auto rank = number(environment, rank_name, 0, *size - 1);
  if (!rank.ok()) return rank.status();
  launch->rank = *rank;
  launch->size = *size;
  return {};
}

// The rank's place among those of its host. Only a hint: a job within another one may have the variables of the outer one.
void read_local_ranks(const Environment& environment, const char* rank_name, const char* size_name, Launch* launch) {
  const auto size = number(environment, size_name, 1, launch->size);
  const auto rank = number(environment, rank_name, 0, size.ok() ? *size - 1 : 0);
  if (!size.ok() || !rank.ok()) return;
  launch->local_rank = *rank;
  launch->local_size = *size;
}

}  // namespace

int port_below_connections(std::uint64_t number) noexcept {
  return kFirstPort + static_cast<int>(number % (kFirstOfConnections - kFirstPort));
}

std::string first_slurm_host(const std::string& node_list) {
  std::string host;
  for (std::size_t i = 0; i < node_list.size() && node_list[i] != ','; ++i) {
    if (node_list[i] == ']') return {};
    if (node_list[i] != '[') {
      host += node_list[i];
      continue;
    }
    const std::size_t end = node_list.find_first_of("-,]", i);  // of the first number
    const std::size_t close = node_list.find(']', i);
    if (close == std::string::npos || end == i + 1) return {};
    host.append(node_list, i + 1, end - i - 1);
    i = close;
  }
  return host;
}

Result<Launch> detect_launch(const Environment& environment) {
  Launch launch;
  Status status;
  const char* address_source = "";  // the variable that should hold rank 0's address, for a message
  if (has(environment, "SHOAL_RANK")) {
    launch.launcher = "shoal run";
    status = read_rank_and_size(environment, "SHOAL_RANK", "SHOAL_SIZE", &launch);
    if (status.ok()) read_local_ranks(environment, "SHOAL_LOCAL_RANK", "SHOAL_LOCAL_SIZE", &launch);
  } else if (has(environment, "OMPI_COMM_WORLD_RANK")) {
    launch.launcher = "mpirun";
    launch.job = get(environment, "PMIX_NAMESPACE");
    status = read_rank_and_size(environment, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", &launch);
    if (status.ok()) read_local_ranks(environment, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", &launch);
  } else if (has(environment, "RANK") && has(environment, "WORLD_SIZE")) {
    launch.launcher = "torchrun";
    address_source = "MASTER_ADDR gives ";
    launch.job = get(environment, "TORCHELASTIC_RUN_ID");
    launch.master_host = get(environment, "MASTER_ADDR");
    status = read_rank_and_size(environment, "RANK", "WORLD_SIZE", &launch);
    if (status.ok()) read_local_ranks(environment, "LOCAL_RANK", "LOCAL_WORLD_SIZE", &launch);
    if (status.ok() && launch.size > 1 && !has(environment, "SHOAL_MASTER_PORT")) {
      const auto port = number(environment, "MASTER_PORT", 1, 65535 - kPortsAfterTorchrun);
      if (port.ok())
        launch.master_port = beside_torchrun(*port);
      else
        status = port.status();
    }
  } else if (has(environment, "SLURM_PROCID") && has(environment, "SLURM_STEP_NUM_TASKS")) {
    launch.launcher = "srun";
    address_source = "SLURM_STEP_NODELIST gives ";
    launch.job = get(environment, "SLURM_JOB_ID") + "." + get(environment, "SLURM_STEP_ID");
    launch.master_host = first_slurm_host(get(environment, "SLURM_STEP_NODELIST"));
    status = read_rank_and_size(environment, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", &launch);
    if (status.ok() && launch.size > 1 && !has(environment, "SHOAL_MASTER_PORT")) {
      const auto id = number(environment, "SLURM_JOB_ID", 0, 2147483647);
      if (id.ok())
        launch.master_port = port_below_connections(static_cast<std::uint64_t>(*id));
      else
        status = id.status();
    }
  } else if (has(environment, "RANK") || has(environment, "WORLD_SIZE")) {
    // Only half of torchrun's environment is set: continuing as the only rank would train on wrong gradients.
    launch.launcher = "torchrun";
    status = read_rank_and_size(environment, "RANK", "WORLD_SIZE", &launch);
  } else {
    launch.launcher = "none";
    return launch;
  }
  if (status.ok()) status = override_master(environment, &launch);
  if (status.ok()) status = split_master(environment, &launch);
  if (!status.ok()) return Status(status.code(), fmt::format("environment of {}: {}", launch.launcher, status.message()));
  const bool needs_address = launch.size > 1 && launch.launcher != "mpirun";
  if (needs_address && (launch.master_host.empty() || launch.master_port == 0)) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("environment of {}: {}no address for rank 0; set SHOAL_MASTER_ADDR and SHOAL_MASTER_PORT",
                              launch.launcher, address_source));
  }
  return launch;
}

LocalRanks local_ranks(const Launch& launch) { return {launch.rank, launch.size, launch.local_rank, launch.local_size}; }

Result<OpenedStore> open_store(const Launch& launch, std::chrono::steady_clock::time_point deadline) {
  const auto key = given_job_key();
  if (!key.ok()) return key.status();
  if (launch.master_host.empty() || launch.master_port == 0) {
    auto opened = open_pmix_store(launch, *key, deadline);
    if (opened.ok()) remember_job_key(opened->key);
    return opened;
  }
  const StoreAddress address{launch.master_host, launch.master_port, launch.job, key->key};
  auto store = make_tcp_store(address, launch.rank == 0, local_ranks(launch), key->secret, deadline);
  if (!store.ok()) return store.status();
  return OpenedStore{std::move(store).value(), *key};
}

}  // namespace shoal
