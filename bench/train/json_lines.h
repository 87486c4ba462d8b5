// A file to which lines of JSON are appended.
#pragma once

#include <fstream>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include <shoal/status.h>

namespace shoal::train {

/// Flushes each line, so that readers that follow the file see it at once. Thread rule: one thread.
class JsonLines {
 public:
  /// Replaces an existing file at `path`, or appends to it if `append`. Errors: system_error with the file's name.
  Status open(const std::string& path, bool append = false);
  [[nodiscard]] bool is_open() const { return file_.is_open(); }
  /// Does nothing if no file is open. Errors: system_error with the file's name; the file is closed then, so that an error
  /// occurs only once.
  Status write(const nlohmann::json& line);

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace shoal::train
