// SHOAL_LINK_MEMORY: what the links of a rank take, inside its host and over TCP, in jobs that use all of them.
#include <gmock/gmock.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/mentions.h"
#include "tests/multiprocess/ranks.h"

namespace shoal {
namespace {

constexpr int kRanks = 12;
constexpr std::size_t kMiB = std::size_t{1} << 20;

CommunicatorOptions over(const std::string& transports) {
  CommunicatorOptions options;
  options.transports = transports;
  options.timeout = std::chrono::seconds(50);
  return options;
}

/// Resident pages of this process that others share, too.
std::size_t shared_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssShmem:")) return 1024 * std::stoul(line.substr(9));
  }
  return 0;
}

/// Each rank sends 2 MiB to each other one in sixteen calls, which uses every slot of every ring.
std::string exchange_with_all(Communicator& c) {
  constexpr std::size_t kShare = 128 * 1024 / sizeof(std::int32_t);
  const auto size = static_cast<std::size_t>(c.size());
  std::vector<std::int32_t> input(kShare * size);
  std::vector<std::int32_t> output(input.size());
  for (int call = 0; call < 16; ++call) {
    for (std::size_t i = 0; i < input.size(); ++i)
      input[i] = call + 1000 * c.rank() + 100'000 * static_cast<std::int32_t>(i / kShare);
    const Status status = c.all_to_all(input.data(), output.data(), kShare, DataType::int32);
    if (!status.ok()) return status.to_string();
    for (std::size_t i = 0; i < output.size(); ++i) {
      const std::int32_t expected = call + 1000 * static_cast<std::int32_t>(i / kShare) + 100'000 * c.rank();
      if (output[i] != expected) return fmt::format("call {}, element {}: {}, not {}", call, i, output[i], expected);
    }
  }
  return {};
}

class LinkMemory : public ::testing::Test {
 public:
  LinkMemory() {
    ::setenv("SHOAL_SINGLE_COPY", "0", 1);  // else large messages go past the links
    ::setenv("SHOAL_PROBE", "0", 1);        // ranks 0 and 1 would have used shared memory before
  }
  ~LinkMemory() override {
    ::unsetenv("SHOAL_PROBE");
    ::unsetenv("SHOAL_SINGLE_COPY");
    ::unsetenv("SHOAL_LINK_MEMORY");
  }
};

TEST_F(LinkMemory, LimitHoldsWhileAllLinksAreUsed) {
  ::setenv("SHOAL_LINK_MEMORY", "1M", 1);
  testing::expect_ranks(kRanks, over("shm"), [](Communicator& c) -> std::string {
    const std::size_t before = shared_bytes();
    if (const std::string wrong = exchange_with_all(c); !wrong.empty()) return wrong;
    // What it sends and what it receives.
    const std::size_t used = shared_bytes() - before;
    return used <= 3 * kMiB ? "" : fmt::format("links take {} bytes", used);
  });
}

TEST_F(LinkMemory, DefaultLeavesFewRanksAllSlots) {
  testing::expect_ranks(kRanks, over("shm"), [](Communicator& c) -> std::string {
    const std::size_t before = shared_bytes();
    if (const std::string wrong = exchange_with_all(c); !wrong.empty()) return wrong;
    const std::size_t used = shared_bytes() - before;
    return used >= 8 * kMiB ? "" : fmt::format("links take {} bytes; does all_to_all use other memory?", used);
  });
}

// TCP links return memory about once a second while calls drive them. /proc counts a page twice where both mappings of a ring
// have been used.
TEST_F(LinkMemory, LimitHoldsOverTcp) {
  ::setenv("SHOAL_LINK_MEMORY", "1M", 1);
  testing::expect_ranks(kRanks, over("tcp"), [](Communicator& c) -> std::string {
    const std::size_t before = shared_bytes();
    if (const std::string wrong = exchange_with_all(c); !wrong.empty()) return wrong;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (true) {
      const std::size_t used = shared_bytes() - before;
      const bool waits = std::chrono::steady_clock::now() < until;
      std::int32_t state = used <= 3 * kMiB ? 2 : waits ? 1 : 0;  // the ranks end together
      const Status status = c.all_reduce(&state, &state, 1, DataType::int32, ReduceOp::min);
      if (!status.ok()) return status.to_string();
      if (state == 2) return {};
      if (state == 0) return fmt::format("links take {} bytes", used);
    }
  });
}

TEST_F(LinkMemory, DefaultLeavesTcpLinksTheirMemory) {
  testing::expect_ranks(kRanks, over("tcp"), [](Communicator& c) -> std::string {
    const std::size_t before = shared_bytes();
    if (const std::string wrong = exchange_with_all(c); !wrong.empty()) return wrong;
    const std::size_t used = shared_bytes() - before;
    return used > 3 * kMiB ? "" : fmt::format("links take {} bytes; does all_to_all use other memory?", used);
  });
}

TEST_F(LinkMemory, BadValueIsNamed) {
  ::setenv("SHOAL_LINK_MEMORY", "100K", 1);
  const auto outcomes = testing::run_ranks(2, [](int rank, int size, const std::string& directory) -> std::string {
    const auto communicator = testing::join(directory, rank, size, over("shm"));
    if (communicator.ok()) return "a communicator with 100K of memory for links";
    EXPECT_EQ(communicator.status().code(), StatusCode::invalid_argument);
    EXPECT_THAT(communicator.status().message(), testing::Mentions("SHOAL_LINK_MEMORY", "'100K'", "1 MiB", "1024 GiB"));
    return {};
  });
  testing::expect_all_well(outcomes);
}

}  // namespace
}  // namespace shoal
