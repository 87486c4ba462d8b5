// On which cores, and with which priority, the progress threads of real ranks run.
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "src/machine/cores.h"
#include "src/machine/placing.h"
#include "src/machine/sysfs.h"
#include "tests/multiprocess/ranks.h"
#include "tests/unit/fake_machine.h"

namespace shoal {
namespace {

using testing::expect_ranks;

/// The thread id of this process's progress thread; 0 if there is none.
pid_t progress_thread() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name == "shoal-progress") return std::stoi(task.path().filename().string());
  }
  return 0;
}

/// The cores on which this process's progress thread may run; empty if there is no such thread.
std::string cores_of_progress_thread() {
  const pid_t thread = progress_thread();
  if (thread == 0) return {};
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(thread, sizeof set, &set) != 0) return "unknown";
  std::string cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores += fmt::format("{}{}", cores.empty() ? "" : ",", core);
  }
  return cores;
}

std::string nice_of_progress_thread() {
  const pid_t thread = progress_thread();
  return thread == 0 ? "" : std::to_string(::getpriority(PRIO_PROCESS, static_cast<id_t>(thread)));
}

std::string text_of(const std::vector<int>& cores) { return fmt::format("{}", fmt::join(cores, ",")); }

/// Starts the progress thread of a rank and waits until `read` returns `expected`. Returns what is wrong; empty: nothing.
std::string check_thread(Communicator& c, const std::string& expected, std::string (*read)() = cores_of_progress_thread) {
  std::array<float, 1024> first{};
  std::array<float, 1024> second{};
  // Two calls: the thread starts for the first one, because no caller waits for it.
  auto one = c.all_reduce_async(first.data(), first.data(), first.size(), DataType::float32, ReduceOp::sum);
  if (!one.ok()) return one.status().to_string();
  auto other = c.all_reduce_async(second.data(), second.data(), second.size(), DataType::float32, ReduceOp::sum);
  if (!other.ok()) return other.status().to_string();
  if (Status status = other->wait(); !status.ok()) return status.to_string();
  if (Status status = one->wait(); !status.ok()) return status.to_string();
  // The thread sets its own cores first, which may take a moment.
  std::string found;
  for (int i = 0; i < 200 && found != expected; ++i) {
    found = read();
    if (found != expected) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (Status status = c.barrier(); !status.ok()) return status.to_string();
  return found == expected ? std::string() : fmt::format("runs on or at '{}', not {}", found, expected);
}

TEST(Placement, ProgressThreadTakesPriorityFromSetting) {
  const std::string own = std::to_string(::getpriority(PRIO_PROCESS, 0));
  expect_ranks(2, {}, [&](Communicator& c) { return check_thread(c, own, nice_of_progress_thread); });
  ::setenv("SHOAL_PROGRESS_NICE", "19", 1);  // the only value that never needs a privilege
  expect_ranks(2, {}, [&](Communicator& c) { return check_thread(c, "19", nice_of_progress_thread); });
  ::setenv("SHOAL_PROGRESS_NICE", "-21", 1);
  testing::expect_all_well(testing::run_ranks(1, [](int rank, int size, const std::string& directory) -> std::string {
    const auto made = testing::join(directory, rank, size, {});
    return made.status().code() == StatusCode::invalid_argument ? "" : "-21 was accepted: " + made.status().to_string();
  }));
  ::unsetenv("SHOAL_PROGRESS_NICE");
}

TEST(Placement, RankUsesItsCoreOfTheSetting) {
  const std::vector<int> cores = affinity_cores();
  if (cores.size() < 2) GTEST_SKIP() << "needs two cores, this process has one";
  ::setenv("SHOAL_PROGRESS_CORES", fmt::format("{},{}", cores[0], cores[1]).c_str(), 1);
  expect_ranks(2, {}, [&](Communicator& c) -> std::string {
    return check_thread(c, std::to_string(cores[static_cast<std::size_t>(c.rank())]));
  });
  ::unsetenv("SHOAL_PROGRESS_CORES");
}

/// A tree like /sys with this process's cores on two nodes, the GPU on the second, the NIC on the first.
void write_two_nodes(const std::string& root, const std::vector<int>& cores) {
  const auto half = cores.begin() + static_cast<std::ptrdiff_t>(cores.size() / 2);
  fake::Machine machine{{format_cores({cores.begin(), half}), format_cores({half, cores.end()})}, 0, {}, "", "", ""};
  machine.devices.push_back(
      {"pci0000:00", "0000:00:01.0", "0x1d0f", "0xefa1", "0x020000", 0, "rdmap0s1", "100 Gb/sec", "", ""});
  machine.devices.push_back({"pci0000:00", "0000:00:02.0", "0x10de", "0x2330", "0x030200", 1, "", "", "", ""});
  fake::write(machine, root);
}

TEST(Placement, RankUsesCoresNearItsDevices) {
  const std::vector<int> cores = affinity_cores();
  if (cores.size() < 2) GTEST_SKIP() << "needs two cores, this process has one";
  const fake::Folder folder;
  write_two_nodes(folder.path(), cores);
  const int spare = std::max(4, static_cast<int>(cores.size()));
  ::setenv("SHOAL_SYSFS_ROOT", folder.path().c_str(), 1);
  ::setenv("SHOAL_CORES", std::to_string(spare).c_str(), 1);  // for two ranks on two cores as well
  const auto places = places_of(read_hardware(folder.path()), {{cores, cores}, spare}, "near");
  ASSERT_EQ(places[0].progress_cores, std::vector{cores[cores.size() / 2 - 1]}) << "the NIC's node";
  expect_ranks(2, {}, [&](Communicator& c) -> std::string {
    const auto& kept = places[static_cast<std::size_t>(c.rank())].progress_cores;
    return check_thread(c, text_of(kept.empty() ? cores : kept));
  });
  ::setenv("SHOAL_PROGRESS_CORES", "off", 1);
  expect_ranks(2, {}, [&](Communicator& c) -> std::string { return check_thread(c, text_of(cores)); });
  for (const char* name : {"SHOAL_SYSFS_ROOT", "SHOAL_CORES", "SHOAL_PROGRESS_CORES"}) ::unsetenv(name);
}

}  // namespace
}  // namespace shoal
