#include "bench/train/json_lines.h"

#include <cerrno>

#include <nlohmann/json.hpp>

namespace shoal::train {

Status JsonLines::open(const std::string& path, bool append) {
  path_ = path;
  file_.open(path, append ? std::ios::app : std::ios::out);
  return file_ ? Status() : system_error("write " + path, errno);
}

Status JsonLines::write(const nlohmann::json& line) {
  if (!file_.is_open()) return {};
  file_ << line.dump() << std::endl;
  if (file_) return {};
  Status failure = system_error("write " + path_, errno);
  file_.close();
  return failure;
}

}  // namespace shoal::train
