#include "bench/perf/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace shoal::perf {
namespace {

nlohmann::ordered_json cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0 && line.rfind("CPU part", 0) != 0) continue;
    if (const std::size_t at = line.find(": "); at != std::string::npos) return line.substr(at + 2);
  }
  return nullptr;
}

nlohmann::ordered_json cores() {
  // The cores of the machine, not of this process: launchers bind each rank to a few.
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  return online > 0 ? nlohmann::ordered_json(online) : nlohmann::ordered_json(nullptr);
}

nlohmann::ordered_json kernel() {
  utsname names{};
  if (uname(&names) != 0) return nullptr;
  return fmt::format("{} {} {}", names.sysname, names.release, names.machine);
}

nlohmann::ordered_json memory_gib() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page_bytes = sysconf(_SC_PAGE_SIZE);
  if (pages <= 0 || page_bytes <= 0) return nullptr;
  const double gib = static_cast<double>(pages) * static_cast<double>(page_bytes) / (1 << 30);
  return std::round(gib * 10) / 10;
}

}  // namespace

nlohmann::ordered_json describe_machine(const nlohmann::ordered_json& versions) {
#ifdef __clang__
  const std::string compiler = "clang " __VERSION__;
#else
  const std::string compiler = "g++ " __VERSION__;
#endif
  return {{"cpu", cpu_model()},         {"cores", cores()},     {"kernel", kernel()},
          {"memory_gib", memory_gib()}, {"compiler", compiler}, {"versions", versions}};
}

}  // namespace shoal::perf
