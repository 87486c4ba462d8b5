#include "src/communicator/tuning_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace shoal {

Result<TuningTable> read_tuning_file(const std::string& path) {
  errno = 0;
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    const int error = errno == 0 ? EINVAL : errno;
    return Status(error == ENOENT ? StatusCode::not_found : StatusCode::system_error,
                  fmt::format("tuning table {}: {} (make one with shoal tune)", path, std::strerror(error)));
  }
  auto table = parse_tuning(text.view());
  if (!table.ok()) {
    return Status(table.status().code(), fmt::format("tuning table {}: {}", path, table.status().message()));
  }
  return table;
}

std::string tuning_text(const TuningTable& table, const Topology& topology, const std::string& transports) {
  const TunedShape* const tuned = table.find(topology, transports);
  return tuned == nullptr ? std::string() : to_json(*tuned).dump();
}

Result<std::optional<TunedShape>> read_tuning(const std::string& text) {
  if (text.empty()) return std::optional<TunedShape>();
  auto tuned = parse_tuned_shape(text);
  if (!tuned.ok()) {
    return Status(StatusCode::internal, fmt::format("rank 0 published a tuning table that {}", tuned.status().message()));
  }
  return std::optional<TunedShape>(std::move(tuned).value());
}

}  // namespace shoal
