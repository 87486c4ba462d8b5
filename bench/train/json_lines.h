// A file that grows by lines of JSON.
#pragma once

#include <fstream>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include <shoal/status.h>

namespace shoal::train {

/// Writes each line at once, so that whoever follows the file sees it. Thread rule: one thread.
class JsonLines {
 public:
  /// An older file at `path` is replaced, or gets more lines where `append`. Errors: system_error with the file's name.
  Status open(const std::string& path, bool append = false);
  [[nodiscard]] bool is_open() const { return file_.is_open(); }
  /// Does nothing where no file is open. Errors: system_error with the file's name; the file is closed then, so that an error
  /// comes once.
  Status write(const nlohmann::json& line);

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace shoal::train
