#include "bench/train/page.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "bench/train/report.h"

namespace shoal::train {
namespace {

/// The Python of the torch installation has matplotlib; the other one may have it.
const std::vector<std::string>& pythons() {
  static const std::vector<std::string> all{SHOAL_TRAIN_PYTHON, "python3"};
  return all;
}

/// The command that runs the script, for exec and posix_spawn. It points into `words`.
std::vector<char*> command(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

int make_page(const std::vector<std::string>& arguments) {
  for (const std::string& python : pythons()) {
    std::vector<std::string> words{python, SHOAL_TRAIN_PAGE_SCRIPT};
    words.insert(words.end(), arguments.begin(), arguments.end());
    const std::vector<char*> pointers = command(words);
    execvp(pointers[0], pointers.data());
  }
  std::fprintf(stderr, "shoal_train: report: python3 could not be started: %s\n", std::strerror(errno));
  return 1;
}

Status draw_plot(const nlohmann::json& results, const std::string& path) {
  std::string file = (std::filesystem::temp_directory_path() / "shoal-train-XXXXXX").string();
  const int made = mkstemp(file.data());
  if (made < 0) return system_error("make " + file, errno);
  close(made);
  Status status = write_json(results, file);
  if (status.ok()) {
    int error = 0;
    pid_t child = 0;
    for (const std::string& python : pythons()) {
      std::vector<std::string> words{python, SHOAL_TRAIN_PAGE_SCRIPT, "--plot", path, file};
      error = posix_spawnp(&child, words[0].c_str(), nullptr, nullptr, command(words).data(), environ);
      if (error == 0) break;
    }
    int outcome = 0;
    while (error == 0 && waitpid(child, &outcome, 0) < 0) {
      if (errno != EINTR) error = errno;
    }
    if (error != 0)
      status = system_error("--plot: could not start python3", error);
    else if (outcome != 0)
      status = Status(StatusCode::system_error, "--plot: " + path + " was not drawn");
  }
  (void)unlink(file.c_str());
  return status;
}

}  // namespace shoal::train
