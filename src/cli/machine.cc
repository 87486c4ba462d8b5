#include "src/cli/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace shoal {

nlohmann::ordered_json describe_machine() {
  nlohmann::ordered_json machine{{"cpu", nullptr}, {"cores", nullptr}, {"kernel", nullptr}, {"memory_gib", nullptr}};
  std::ifstream cpus("/proc/cpuinfo");
  for (std::string line; machine["cpu"].is_null() && std::getline(cpus, line);) {
    const std::size_t at = line.find(": ");
    // Arm kernels name the part, not the model.
    if (at != std::string::npos && (line.starts_with("model name") || line.starts_with("CPU part")))
      machine["cpu"] = line.substr(at + 2);
  }
  if (const long cores = ::sysconf(_SC_NPROCESSORS_ONLN); cores > 0) machine["cores"] = cores;
  utsname names{};
  if (::uname(&names) == 0) machine["kernel"] = fmt::format("{} {} {}", names.sysname, names.release, names.machine);
  const double bytes = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGE_SIZE));
  if (bytes > 0) machine["memory_gib"] = std::round(bytes / (1 << 30) * 10) / 10;
  return machine;
}

}  // namespace shoal
