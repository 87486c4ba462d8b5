#include "bench/train/machine.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

#include <sched.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>

#include <torch/version.h>

#include <shoal/shoal.h>
#include <nlohmann/json.hpp>

#include "bench/train/mpi.h"

namespace shoal::train {
namespace {

const std::string kShoal =
    std::to_string(SHOAL_VERSION_MAJOR) + "." + std::to_string(SHOAL_VERSION_MINOR) + "." + std::to_string(SHOAL_VERSION_PATCH);
#ifdef __clang__
constexpr const char* kCompiler = __VERSION__;  // contains the name of the compiler
#else
constexpr const char* kCompiler = "g++ " __VERSION__;
#endif

nlohmann::json cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(':') + 2));
  }
  return nullptr;
}

}  // namespace

int allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  std::ifstream quota("/sys/fs/cgroup/cpu.max");  // "200000 100000" or "max 100000"
  double granted_us = 0;
  double period_us = 0;
  if (quota >> granted_us >> period_us && period_us > 0) {
    cores = std::min(cores, static_cast<int>(std::ceil(granted_us / period_us)));
  }
  return std::max(cores, 1);
}

std::string kernel_identity() {
  std::string identity;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), identity);
  return identity;
}

std::string cores_identity() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Cpus_allowed:")) return line;
  }
  return {};
}

nlohmann::json describe_machine() {
  nlohmann::json machine{{"host", nullptr},   {"cpu", cpu_name()},      {"cores", allowed_cores()}, {"memory_gib", nullptr},
                         {"kernel", nullptr}, {"torch", TORCH_VERSION}, {"shoal", kShoal},          {"compiler", kCompiler}};
  const std::string mpi = mpi_version();
  machine["open_mpi"] = mpi.empty() ? nlohmann::json(nullptr) : nlohmann::json(mpi);
  utsname names{};
  if (uname(&names) == 0) {
    machine["host"] = names.nodename;
    machine["kernel"] = std::string(names.sysname) + " " + names.release;
  }
  struct sysinfo memory {};
  if (sysinfo(&memory) == 0)
    machine["memory_gib"] = std::round(10.0 * static_cast<double>(memory.totalram) * memory.mem_unit / (1 << 30)) / 10;
  return machine;
}

}  // namespace shoal::train
