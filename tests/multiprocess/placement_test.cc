// Where the communication threads of real ranks run: on the cores that SHOAL_PROGRESS_CORES gives them.
#include <sched.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "src/engine/cores.h"
#include "tests/multiprocess/ranks.h"

namespace shoal {
namespace {

using testing::expect_ranks;

/// The cores that this process's communication thread may run on; empty where there is no such thread.
std::string cores_of_progress_thread() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name != "shoal-progress") continue;
    cpu_set_t set;
    CPU_ZERO(&set);
    if (::sched_getaffinity(std::stoi(task.path().filename().string()), sizeof set, &set) != 0) return "unknown";
    std::string cores;
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) cores += fmt::format("{}{}", cores.empty() ? "" : ",", core);
    }
    return cores;
  }
  return {};
}

TEST(Placement, EachRankTakesItsCoreOfTheList) {
  const std::vector<int> cores = affinity_cores();
  if (cores.size() < 2) GTEST_SKIP() << "needs two cores, this process has one";
  ::setenv("SHOAL_PROGRESS_CORES", fmt::format("{},{}", cores[0], cores[1]).c_str(), 1);
  expect_ranks(2, {}, [&](Communicator& c) -> std::string {
    std::array<float, 1024> first{};
    std::array<float, 1024> second{};
    // Two at once: the one that nobody waits for is left to the thread, which starts for it.
    auto one = c.all_reduce_async(first.data(), first.data(), first.size(), DataType::float32, ReduceOp::sum);
    if (!one.ok()) return one.status().to_string();
    auto other = c.all_reduce_async(second.data(), second.data(), second.size(), DataType::float32, ReduceOp::sum);
    if (!other.ok()) return other.status().to_string();
    if (Status status = other->wait(); !status.ok()) return status.to_string();
    if (Status status = one->wait(); !status.ok()) return status.to_string();
    const std::string expected = std::to_string(cores[static_cast<std::size_t>(c.rank())]);
    // The thread pins itself as its first act; it may not have come to that yet.
    std::string found;
    for (int i = 0; i < 200 && found != expected; ++i) {
      found = cores_of_progress_thread();
      if (found != expected) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    if (Status status = c.barrier(); !status.ok()) return status.to_string();
    return found == expected ? std::string() : fmt::format("runs on '{}', not on {}", found, expected);
  });
  ::unsetenv("SHOAL_PROGRESS_CORES");
}

}  // namespace
}  // namespace shoal
