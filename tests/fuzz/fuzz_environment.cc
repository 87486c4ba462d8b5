// Environment variables: lines of NAME=VALUE, as launchers and users set them.
#include <cstdint>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>

#include "src/join/job_key.h"
#include "src/join/launch.h"
#include "src/machine/cores.h"
#include "src/settings/settings.h"

using namespace shoal;  // NOLINT(google-build-using-namespace): the whole file is one function

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  std::map<std::string, std::string> variables;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find('=');
    if (equals != std::string::npos) variables[line.substr(0, equals)] = line.substr(equals + 1).c_str();
  }
  const auto launch = detect_launch([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
  if (launch.ok() &&
      (launch->rank < 0 || launch->rank >= launch->size || launch->master_port < 0 || launch->master_port > 65535))
    std::abort();
  for (const Setting& one : settings()) {
    const auto found = variables.find(one.name);
    if (found == variables.end() || found->first == "SHOAL_JOB_KEY_FILE") continue;
    ::setenv(one.name, found->second.c_str(), 1);
    const auto whole = integer_setting(one.name, 1, 16);
    if (whole.ok() && (*whole < 1 || *whole > 16)) std::abort();
    const auto time = time_setting(one.name);
    if (time.ok() && (time->count() < 1 || time->count() > 1'000'000'000'000)) std::abort();
    if (const auto bytes = parse_bytes(found->second); bytes.ok()) static_cast<void>(format_bytes(*bytes));
    if (found->first == "SHOAL_JOB_KEY") {
      // No message reveals the key: the message is the same for any key of that length.
      const Status status = job_key().status();
      ::setenv(one.name, std::string(found->second.size(), 'x').c_str(), 1);
      if (job_key().status().to_string() != status.to_string()) std::abort();
    }
    ::unsetenv(one.name);
  }
  static_cast<void>(first_slurm_host(text));
  if (node_cores({text, "11"}, 0) < 2) std::abort();
  return 0;
}
