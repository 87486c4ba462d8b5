// Ranks of one host that are killed: every rank that is left learns of each death, whoever watches whom.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "tests/slack.h"
#include "transports/shm/shm.h"

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRanks = 24;

/// What the ranks share with the test.
struct Shared {
  std::array<std::array<char, 256>, kRanks> addresses;
  std::array<std::atomic<std::size_t>, kRanks> address_bytes;
  std::array<std::atomic<bool>, kRanks> connected;
  /// Bits of the peers whose links a rank has seen broken, and of those whose ends it called something else than a death.
  std::array<std::atomic<std::uint32_t>, kRanks> lost;
  std::array<std::atomic<std::uint32_t>, kRanks> wrong;
};

template <typename Condition>
bool comes_true(std::chrono::milliseconds limit, Condition condition) {
  const auto until = Clock::now() + limit;
  while (!condition()) {
    if (Clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// A rank that waits for nobody: it sleeps until something happens.
[[noreturn]] void run_rank(Shared& shared, int rank) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ShmOptions options;
  options.rank = rank;
  options.slots = 2;
  options.window_bytes = 0;
  auto transport = std::move(make_shm_transport(options)).value();
  const auto self = static_cast<std::size_t>(rank);
  const std::string address = transport->address();
  std::memcpy(shared.addresses[self].data(), address.data(), address.size());
  shared.address_bytes[self] = address.size();
  std::vector<int> peers;
  std::vector<std::string> addresses;
  for (int peer = 0; peer < kRanks; ++peer) {
    if (peer == rank) continue;
    const auto at = static_cast<std::size_t>(peer);
    while (shared.address_bytes[at] == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    peers.push_back(peer);
    addresses.emplace_back(shared.addresses[at].data(), shared.address_bytes[at]);
  }
  const auto links = transport->connect(peers, addresses, Clock::now() + std::chrono::seconds(60));
  if (!links.ok()) ::_exit(1);
  shared.connected[self] = true;
  for (;;) {
    while (transport->progress()) continue;
    for (const auto& link : *links) {
      if (link->status().ok()) continue;
      const std::uint32_t bit = std::uint32_t{1} << link->peer();
      const std::string expected = "the process of rank " + std::to_string(link->peer()) + " has ended";
      if (link->status().message() != expected) shared.wrong[self] |= bit;
      shared.lost[self] |= bit;
    }
    const bool blocks = transport->prepare_wait();
    pollfd item{transport->wait_fd(), POLLIN, 0};
    if (blocks) ::poll(&item, 1, -1);  // only a peer that tells of a death ends it
    transport->finish_wait((item.revents & POLLIN) != 0);
  }
}

class Job {
 public:
  Job() : shared_(*new (::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Shared()) {
    for (int rank = 0; rank < kRanks; ++rank) {
      pids_[static_cast<std::size_t>(rank)] = ::fork();
      if (pids_[static_cast<std::size_t>(rank)] == 0) run_rank(shared_, rank);
    }
  }
  ~Job() {
    for (const pid_t pid : pids_) ::kill(pid, SIGKILL);
    for (const pid_t pid : pids_) ::waitpid(pid, nullptr, 0);
    ::munmap(&shared_, sizeof(Shared));
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  bool starts() {
    return comes_true(std::chrono::seconds(60), [&] {
      for (const auto& connected : shared_.connected) {
        if (!connected) return false;
      }
      return true;
    });
  }
  void signal(int rank, int number) { ::kill(pids_[static_cast<std::size_t>(rank)], number); }
  void kill(int rank) {
    signal(rank, SIGKILL);
    dead_ |= std::uint32_t{1} << rank;
  }
  /// Whether all ranks that live have lost those that were killed, and no other, soon.
  bool all_know() {
    return comes_true(std::chrono::milliseconds(static_cast<int>(5000 * kSlack)), [&] {
      for (int rank = 0; rank < kRanks; ++rank) {
        const auto self = static_cast<std::size_t>(rank);
        if ((dead_ >> rank & 1) == 0 && (shared_.lost[self] != dead_ || shared_.wrong[self] != 0)) return false;
      }
      return true;
    });
  }

 private:
  Shared& shared_;
  std::array<pid_t, kRanks> pids_{};
  std::uint32_t dead_ = 0;
};

TEST(ShmDeaths, RanksKilledOneByOneAreLostByAll) {
  Job job;
  ASSERT_TRUE(job.starts());
  EXPECT_TRUE(job.all_know()) << "nobody has died";
  for (int k = 0; k < kRanks - 1; ++k) {
    const int victim = k * 7 % kRanks;  // neighbours and others
    job.kill(victim);
    ASSERT_TRUE(job.all_know()) << "after the death of rank " << victim;
  }
}

TEST(ShmDeaths, NeighboursKilledTogetherAreLostByAll) {
  Job job;
  ASSERT_TRUE(job.starts());
  for (int rank = 3; rank < 12; ++rank) job.signal(rank, SIGSTOP);
  for (int rank = 3; rank < 12; ++rank) job.kill(rank);
  EXPECT_TRUE(job.all_know());
  for (int rank = 20; rank < 27; ++rank) job.kill(rank % kRanks);
  EXPECT_TRUE(job.all_know());
}

}  // namespace
}  // namespace shoal
