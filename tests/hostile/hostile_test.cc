// A job that starts and runs under hostile connections: junk, scans, half-open and slow connections, replays.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>

#include <shoal/store.h>

#include "src/join/job_key.h"
#include "src/join/socket.h"
#include "src/trust/proof.h"
#include "tests/hostile/attack_plan.h"
#include "tests/hostile/job.h"
#include "tests/hostile/listeners.h"
#include "tests/hostile/shared_state.h"
#include "tests/multiprocess/ranks.h"

namespace shoal::hostile {
namespace {

using Clock = std::chrono::steady_clock;

#ifdef SHOAL_SANITIZED
constexpr int kDefaultInputs = 2'500;
#else
constexpr int kDefaultInputs = 30'000;
#endif

/// The number of hostile connections; SHOAL_HOSTILE_INPUTS sets it for longer runs.
int wanted_inputs() {
  const char* wanted = std::getenv("SHOAL_HOSTILE_INPUTS");
  return wanted == nullptr ? kDefaultInputs : std::atoi(wanted);
}

std::string attacker_body(int port, int inputs, std::uint64_t seed, SharedState& state, std::chrono::milliseconds time_limit) {
  const auto deadline = Clock::now() + time_limit;
  auto store = make_tcp_store("127.0.0.1", port, false, kJob, deadline);
  if (!store.ok()) return store.status().to_string();
  auto listeners = published_listeners(**store, port, deadline);
  if (!listeners.ok()) return "listeners: " + listeners.status().to_string();
  return AttackPlan(state, std::move(*listeners), inputs, seed).run();
}

TEST(Hostile, JobStartsAndRunsUnderHostileConnections) {
  const int inputs = wanted_inputs();
  const std::uint64_t seed = 20261121;
  std::cout << inputs << " inputs, seed " << seed << std::endl;
  ::setenv("SHOAL_JOB_KEY", to_hex(random_key()).c_str(), 1);
  ::unsetenv("SHOAL_HOST_ADDRESS");          // it would limit the job to one address
  ::setenv("SHOAL_SOCKET_IFNAME", "lo", 1);  // IPv4 and, if there is one, IPv6
  ::setenv("SHOAL_CONNECT", "all", 1);       // the number of connections to each listener is known
  const auto port = free_port("127.0.0.1");
  ASSERT_TRUE(port.ok());
  SharedState& state = SharedState::make();
  const auto start = Clock::now();
  const auto time_limit = std::chrono::milliseconds(240'000 + 2 * inputs);
  const auto outcomes = testing::run_ranks(
      kRanks + 1,
      [&](int rank, int, const std::string&) {
        if (rank != kAttacker) return rank_body(rank, *port, state, time_limit);
        std::string wrong = attacker_body(*port, inputs, seed, state, time_limit);
        state.stage = kOpen;
        state.over = true;
        return wrong;
      },
      std::chrono::duration<double>(time_limit).count());
  ::unsetenv("SHOAL_JOB_KEY");
  ::unsetenv("SHOAL_SOCKET_IFNAME");
  ::unsetenv("SHOAL_CONNECT");
  for (int rank = 0; rank <= kRanks; ++rank) {
    const auto& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(outcome.output + testing::bad_end(outcome), "")
        << (rank == kAttacker ? "attacker" : "rank " + std::to_string(rank));
  }
  std::cout << std::chrono::duration<double>(Clock::now() - start).count() << " s\n";
}

}  // namespace
}  // namespace shoal::hostile
