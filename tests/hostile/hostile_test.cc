// A job at start-up, when it listens, in the middle of strangers: junk, scans, half-open and slow connections, recordings.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>

#include <shoal/store.h>

#include "src/join/job_key.h"
#include "src/join/socket.h"
#include "src/trust/proof.h"
#include "tests/hostile/board.h"
#include "tests/hostile/job.h"
#include "tests/hostile/listeners.h"
#include "tests/hostile/siege.h"
#include "tests/multiprocess/ranks.h"

namespace shoal::hostile {
namespace {

using Clock = std::chrono::steady_clock;

#ifdef SHOAL_SANITIZED
constexpr int kDefaultInputs = 2'500;
#else
constexpr int kDefaultInputs = 30'000;
#endif

/// SHOAL_HOSTILE_INPUTS: for longer runs.
int wanted_inputs() {
  const char* wanted = std::getenv("SHOAL_HOSTILE_INPUTS");
  return wanted == nullptr ? kDefaultInputs : std::atoi(wanted);
}

std::string attacker_body(int port, int inputs, std::uint64_t seed, Board& board, std::chrono::milliseconds time_limit) {
  const auto deadline = Clock::now() + time_limit;
  auto store = make_tcp_store("127.0.0.1", port, false, kJob, deadline);
  if (!store.ok()) return store.status().to_string();
  auto listeners = told_listeners(**store, port, deadline);
  if (!listeners.ok()) return "listeners: " + listeners.status().to_string();
  return Siege(board, std::move(*listeners), inputs, seed).run();
}

TEST(Hostile, AJobStartsAndGoesOnAmongStrangers) {
  const int inputs = wanted_inputs();
  const std::uint64_t seed = 20261121;
  std::cout << inputs << " inputs, seed " << seed << std::endl;
  ::setenv("SHOAL_JOB_KEY", to_hex(random_key()).c_str(), 1);
  ::unsetenv("SHOAL_HOST_ADDRESS");          // which would be one address
  ::setenv("SHOAL_SOCKET_IFNAME", "lo", 1);  // its IPv6 address as well, where there is one
  const auto port = free_port("127.0.0.1");
  ASSERT_TRUE(port.ok());
  Board& board = Board::make();
  const auto start = Clock::now();
  const auto time_limit = std::chrono::milliseconds(240'000 + 2 * inputs);
  const auto outcomes = testing::run_ranks(
      kRanks + 1,
      [&](int rank, int, const std::string&) {
        if (rank != kAttacker) return rank_body(rank, *port, board, time_limit);
        std::string wrong = attacker_body(*port, inputs, seed, board, time_limit);
        board.stage = kOpen;
        board.over = true;
        return wrong;
      },
      std::chrono::duration<double>(time_limit).count());
  ::unsetenv("SHOAL_JOB_KEY");
  ::unsetenv("SHOAL_SOCKET_IFNAME");
  for (int rank = 0; rank <= kRanks; ++rank) {
    const auto& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(outcome.output + testing::bad_end(outcome), "")
        << (rank == kAttacker ? "attacker" : "rank " + std::to_string(rank));
  }
  std::cout << std::chrono::duration<double>(Clock::now() - start).count() << " s\n";
}

}  // namespace
}  // namespace shoal::hostile
