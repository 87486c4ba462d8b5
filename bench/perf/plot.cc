#include "bench/perf/plot.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include <fmt/format.h>

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX leaves it to the program

namespace shoal::perf {
namespace {

std::filesystem::path cache_folder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0') return cache;
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home != nullptr ? home : "/") / ".cache";
}

std::vector<std::string> interpreters() {
  std::vector<std::string> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(cache_folder() / "shoal", ignored)) {
    if (entry.path().filename().string().rfind("venv-torch-", 0) == 0)
      found.push_back((entry.path() / "bin" / "python").string());
  }
  found.push_back("python3");
  return found;
}

/// The exit code; -1 if the program could not be started.
int run(std::vector<std::string> arguments) {
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  pid_t child = 0;
  if (posix_spawnp(&child, pointers[0], nullptr, nullptr, pointers.data(), environ) != 0) return -1;
  int state = 0;
  if (waitpid(child, &state, 0) != child) return -1;
  return WIFEXITED(state) ? WEXITSTATUS(state) : -1;
}

}  // namespace

Status draw(const std::string& json_path, const std::string& svg_path) {
  constexpr int kNoMatplotlib = 3;  // as in plot.py
  for (const std::string& python : interpreters()) {
    const int code = run({python, SHOAL_PERF_PLOT_SCRIPT, json_path, svg_path});
    if (code == 0) return {};
    if (code == -1 || code == 127 || code == kNoMatplotlib) continue;
    return Status(StatusCode::system_error,
                  fmt::format("--plot {}: {} {} exited with status {}", svg_path, python, SHOAL_PERF_PLOT_SCRIPT, code));
  }
  return Status(StatusCode::unsupported,
                fmt::format("--plot {}: no Python with matplotlib found; install python3-matplotlib", svg_path));
}

}  // namespace shoal::perf
