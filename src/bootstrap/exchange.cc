#include "src/bootstrap/exchange.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include <fmt/format.h>

namespace shoal {

Result<std::vector<std::string>> exchange(Store& store, std::string_view name, int rank, int size, std::string_view mine,
                                          std::chrono::steady_clock::time_point deadline) {
  if (Status status = store.set(fmt::format("{}/{}", name, rank), mine); !status.ok()) return status;
  std::vector<std::string> all;
  for (int r = 0; r < size; ++r) {
    auto value = store.get(fmt::format("{}/{}", name, r), deadline);
    if (!value.ok()) {
      return Status(value.status().code(),
                    fmt::format("start-up ({}): rank {} of {} has not come: {}", name, r, size, value.status().message()));
    }
    all.push_back(std::move(value).value());
  }
  return all;
}

std::string node_identity() {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat network {};
  ::stat("/proc/self/ns/net", &network);
  return fmt::format("{}/{}/{}", host, boot, network.st_ino);
}

}  // namespace shoal
