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

Result<std::optional<TunedShape>> agree_on_tuning(StartupExchange& exchange, int rank, const TuningTable& table,
                                                  const Topology& topology, const std::string& transports) {
  constexpr const char* kKey = "tuning";
  if (rank == 0) {
    const TunedShape* tuned = table.find(topology, transports);
    if (Status status = exchange.publish(kKey, tuned == nullptr ? std::string() : to_json(*tuned).dump()); !status.ok())
      return status;
    if (tuned == nullptr) return std::optional<TunedShape>();
  }
  // Rank 0 reads its own text as well: times are rounded in the text, and all ranks must have the same times.
  const auto text = exchange.fetch("tuning", 0, kKey);
  if (!text.ok()) return text.status();
  if (text->empty()) return std::optional<TunedShape>();
  auto tuned = parse_tuned_shape(*text);
  if (!tuned.ok()) {
    return Status(StatusCode::internal, fmt::format("rank 0 published a tuning table that {}", tuned.status().message()));
  }
  return std::optional<TunedShape>(std::move(tuned).value());
}

}  // namespace shoal
