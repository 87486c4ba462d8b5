// A rank of shoal_perf that hangs in a library reports that.
#include "bench/perf/stuck.h"

#include <chrono>
#include <sstream>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "tests/mentions.h"

namespace shoal::perf {
namespace {

using namespace std::chrono_literals;

TEST(PerfStuck, ReportsHangingCallsOnly) {
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) const Stuck quick("rank 1 in something short", 1);
  const auto start = std::chrono::steady_clock::now();
  {
    const Stuck stuck("rank 7 in all_reduce of 64 bytes by openmpi", 1);
    // A signal may end a sleep early.
    while (std::chrono::steady_clock::now() < start + 2500ms) std::this_thread::sleep_for(50ms);
  }
  const auto lasted = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - start);
  std::this_thread::sleep_for(1200ms);
  std::istringstream output(::testing::internal::GetCapturedStderr());
  int lines = 0;
  for (std::string line; std::getline(output, line); ++lines) {  // no other lines
    EXPECT_THAT(line, ::testing::StartsWith("shoal_perf: "));
    EXPECT_THAT(line, testing::Mentions("1 s", "rank 7 in all_reduce of 64 bytes by openmpi"));
  }
  EXPECT_GE(lines, 2) << "one line per second";
  EXPECT_LE(lines, lasted.count()) << "no line after the end";
}

}  // namespace
}  // namespace shoal::perf
