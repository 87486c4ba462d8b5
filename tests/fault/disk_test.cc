// Full and read-only disks: the job continues without its flight record, and one warning reports that.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "src/diagnosis/flight_record.h"
#include "tests/mentions.h"
#include "tests/multiprocess/ranks.h"

namespace shoal {
namespace {

using ::testing::AllOf;
using testing::Mentions;
using ::testing::StartsWith;

constexpr const char* kNotPermitted = "may not mount";

/// Mounts a disk of `bytes` at `folder`, in a new mount namespace of this process.
bool mount_disk(const std::string& folder, std::size_t bytes) {
  ::mkdir(folder.c_str(), 0700);
  if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  const std::string options = fmt::format("size={},mode=0700", bytes);
  return ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", folder.c_str(), "tmpfs", 0, options.c_str()) == 0;
}

/// Writes until the disk is full. False if it does not get full.
bool fill(const std::string& folder) {
  std::FILE* file = std::fopen((folder + "/filling").c_str(), "w");
  if (file == nullptr) return errno == ENOSPC;
  std::setvbuf(file, nullptr, _IONBF, 0);
  const std::array<char, 4096> block{};
  std::size_t blocks = 0;
  while (blocks < 4096 && std::fwrite(block.data(), block.size(), 1, file) == 1) ++blocks;
  const bool full = errno == ENOSPC;
  std::fclose(file);
  return full;
}

Status sums(Communicator& c) {
  for (const std::size_t count : {3U, 1000U, 100'000U}) {
    std::vector<float> data(count, 1);
    if (Status status = c.all_reduce(data.data(), data.data(), count, DataType::float32, ReduceOp::sum); !status.ok())
      return status;
    if (data.front() != static_cast<float>(c.size()) || data.back() != data.front()) return {StatusCode::internal, "WRONG sum"};
  }
  return {};
}

/// Runs `body` on two ranks, each with its own disk of `bytes`, after `prepare` got the disk. `asked`: SHOAL_FLIGHT_RECORD
/// names the disk. Returns for each rank the Status, then its standard error on further lines.
std::vector<std::string> two_ranks(std::size_t bytes, bool asked, const std::function<bool(const std::string&)>& prepare,
                                   const std::function<Status(Communicator&, const std::string& disk)>& body) {
  const auto outcomes = testing::run_ranks(2, [&](int rank, int size, const std::string& directory) -> std::string {
    const std::string disk = fmt::format("{}/disk.{}", directory, rank);
    const std::string stderr_file = fmt::format("{}/stderr.{}", directory, rank);
    if (!mount_disk(disk, bytes) || !prepare(disk)) return kNotPermitted;
    if (std::freopen(stderr_file.c_str(), "w", stderr) == nullptr) return "no file for stderr";
    std::setvbuf(stderr, nullptr, _IONBF, 0);
    ::setenv(asked ? "SHOAL_FLIGHT_RECORD" : "XDG_RUNTIME_DIR", disk.c_str(), 1);
    Status status;
    {
      auto communicator = testing::join(directory, rank, size, {});
      status = communicator.ok() ? body(**communicator, disk) : communicator.status();
    }
    std::ifstream file(stderr_file);
    return status.to_string() + "\n" + std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  });
  std::vector<std::string> outputs;
  for (const auto& outcome : outcomes) outputs.push_back(outcome.output);
  return outputs;
}

bool may_not_mount(const std::vector<std::string>& outputs) {
  return outputs[0] == kNotPermitted || outputs[1] == kNotPermitted;
}

TEST(Disk, UnwritableFlightRecordWarnsOncePerNode) {
  for (const bool read_only : {false, true}) {
    SCOPED_TRACE(read_only ? "read-only" : "full");
    const auto outputs = two_ranks(
        1 << 20, false,
        [&](const std::string& disk) {
          return read_only ? ::mount(nullptr, disk.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0 : fill(disk);
        },
        [](Communicator& c, const std::string&) { return sums(c); });
    if (may_not_mount(outputs)) GTEST_SKIP() << "this process may not mount a small disk";
    EXPECT_THAT(outputs[0],
                AllOf(StartsWith("ok\nshoal: rank 0: "),
                      Mentions("SHOAL_FLIGHT_RECORD", read_only ? "Read-only file system" : "No space left on device")));
    EXPECT_EQ(std::count(outputs[0].begin(), outputs[0].end(), '\n'), 2) << outputs[0];
    EXPECT_EQ(outputs[1], "ok\n");
  }
}

// The disk has room for the flight record of the job's communicator, but not for those of the groups. A process that touches
// mapped memory of a file without disk space is killed by SIGBUS.
TEST(Disk, DiskFullLaterDoesNotFailCalls) {
  const std::size_t room = (1 << 16) + FlightRecordLayout{2}.page_offset(1);
  for (const bool asked : {false, true}) {
    SCOPED_TRACE(asked ? "asked for" : "by default");
    const auto outputs = two_ranks(
        room, asked, [](const std::string&) { return true; },
        [](Communicator& c, const std::string& disk) -> Status {
          if (!fill(disk)) return {StatusCode::internal, "the disk does not fill up"};
          for (int k = 0; k < 3; ++k) {
            auto group = c.group(std::array<int, 2>{0, 1});
            if (!group.ok()) return group.status();
            if (Status status = sums(**group); !status.ok()) return status;
          }
          return sums(c);
        });
    if (may_not_mount(outputs)) GTEST_SKIP() << "this process may not mount a small disk";
    for (const int rank : {0, 1}) {
      const std::string& words = outputs[static_cast<std::size_t>(rank)];
      EXPECT_THAT(words, AllOf(StartsWith(fmt::format("ok\nshoal: rank {}: ", rank)),
                               Mentions("SHOAL_FLIGHT_RECORD", "No space left on device")));
      EXPECT_EQ(std::count(words.begin(), words.end(), '\n'), 2) << words;
    }
  }
}

}  // namespace
}  // namespace shoal
