// Descriptors that the ranks of a node send each other, and unauthenticated connections to their sockets.
#include "src/cuda/descriptors.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "src/trust/refusals.h"
#include "tests/mentions.h"
#include "tests/multiprocess/ranks.h"
#include "tests/slack.h"

namespace {
/// The fate of the next connect() of this process.
enum class Next { connects, dies, fails };
std::atomic<Next> next_connection{Next::connects};
}  // namespace

extern "C" int connect(int socket, const sockaddr* address, socklen_t length) {
  const Next what = next_connection.exchange(Next::connects);
  if (what == Next::dies) ::raise(SIGKILL);
  if (what == Next::connects) return static_cast<int>(::syscall(SYS_connect, socket, address, length));
  errno = EACCES;
  return -1;
}

namespace shoal::cuda {
namespace {

using ::testing::AllOf;

using Clock = std::chrono::steady_clock;

/// Names of the abstract Unix sockets of this network namespace.
std::set<std::string> abstract_sockets() {
  std::set<std::string> names;
  std::ifstream file("/proc/net/unix");
  for (std::string line; std::getline(file, line);) {
    if (const std::size_t at = line.find(" @"); at != std::string::npos) names.insert(line.substr(at + 2));
  }
  return names;
}

Descriptor connect_to(const std::string& name) {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::copy_n(name.begin(), std::min(name.size(), sizeof address.sun_path - 2), address.sun_path + 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) socket.reset();
  return socket;
}

std::string exchange_and_read(Communicator& c, const std::string& directory) {
  const std::string path = fmt::format("{}/of.{}", directory, c.rank());
  std::ofstream(path) << "of rank " << c.rank();
  const Descriptor own(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const auto start = Clock::now();
  const auto all =
      hand_around(c, own.get(), std::vector<bool>(static_cast<std::size_t>(c.size()), true), std::chrono::seconds(20));
  if (!all.ok()) return all.status().to_string();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  for (int rank = 0; rank < c.size(); ++rank) {
    if (rank == c.rank()) continue;
    std::string text(16, '\0');
    const ssize_t got = ::pread((*all)[static_cast<std::size_t>(rank)].get(), text.data(), text.size(), 0);
    if (got <= 0 || text.substr(0, static_cast<std::size_t>(got)) != fmt::format("of rank {}", rank)) return "wrong: " + text;
  }
  return seconds < 10 ? "" : fmt::format("after {:.1f} s", seconds);
}

TEST(Descriptors, BelongToTheRankThatSentThem) {
  const auto outcomes = testing::run_ranks(3, [](int rank, int size, const std::string& directory) -> std::string {
    auto c = testing::join(directory, rank, size, {});
    return c.ok() ? exchange_and_read(**c, directory) : c.status().to_string();
  });
  testing::expect_all_well(outcomes);
}

// The deadline of each rank is 20 s.
TEST(Descriptors, DeadRankDelaysNoOther) {
  const auto outcomes = testing::run_ranks(3, [](int rank, int size, const std::string& directory) -> std::string {
    auto c = testing::join(directory, rank, size, {});
    if (!c.ok()) return c.status().to_string();
    if (rank == 2) next_connection = Next::dies;
    const auto start = Clock::now();
    const std::string error = exchange_and_read(**c, directory);
    return std::chrono::duration<double>(Clock::now() - start).count() < 5 * kSlack ? error : "late: " + error;
  });
  for (const int rank : {0, 1}) {
    const auto& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(testing::bad_end(outcome), "");
    EXPECT_THAT(outcome.output, AllOf(::testing::StartsWith("peer_failed: "), testing::Mentions("rank 2", "barrier")));
  }
  EXPECT_TRUE(outcomes[2].killed);
}

TEST(Descriptors, RankThatCannotSendDelaysNoOther) {
  const auto outcomes = testing::run_ranks(3, [](int rank, int size, const std::string& directory) -> std::string {
    auto c = testing::join(directory, rank, size, {});
    if (!c.ok()) return c.status().to_string();
    if (rank == 2) next_connection = Next::fails;
    const auto start = Clock::now();
    const std::string error = exchange_and_read(**c, directory);
    if (std::chrono::duration<double>(Clock::now() - start).count() > 5 * kSlack) return "late: " + error;
    const Status still = (*c)->barrier();  // still works
    return still.ok() ? error : still.to_string();
  });
  for (const auto& outcome : outcomes) EXPECT_EQ(testing::bad_end(outcome), "");
  EXPECT_THAT(outcomes[0].output, testing::Mentions("unsupported", "rank 2"));
  EXPECT_THAT(outcomes[1].output, testing::Mentions("unsupported", "rank 2"));
  EXPECT_THAT(outcomes[2].output, testing::Mentions("unsupported", "Unix", "connect"));
}

// Rank 0's socket is open and rank 1 is late: meanwhile unauthenticated connections send nothing, or junk.
TEST(Descriptors, UnauthenticatedConnectionsDelayNoRank) {
  const auto outcomes = testing::run_ranks(2, [](int rank, int size, const std::string& directory) -> std::string {
    auto c = testing::join(directory, rank, size, {});
    if (!c.ok()) return c.status().to_string();
    if (rank == 1) {
      ::usleep(1'000'000);
      return exchange_and_read(**c, directory);
    }
    const std::set<std::string> before = abstract_sockets();
    std::size_t connected = 0;
    std::thread intruder([&] {
      std::vector<Descriptor> held;
      const auto until = Clock::now() + std::chrono::milliseconds(900);
      while (Clock::now() < until && connected == 0) {
        for (const std::string& name : abstract_sockets()) {
          if (before.contains(name)) continue;
          for (int k = 0; k < 2; ++k) {
            Descriptor connection = connect_to(name);
            if (!connection.valid()) continue;
            ++connected;
            if (k == 1) static_cast<void>(::send(connection.get(), "0123456789abcdef", 16, MSG_NOSIGNAL));
            held.push_back(std::move(connection));
          }
        }
        ::usleep(5'000);
      }
      ::usleep(2'000'000);  // held open
    });
    const std::uint64_t refused = refusals().count;
    const std::string result = exchange_and_read(**c, directory);
    const std::uint64_t counted = refusals().count - refused;
    intruder.join();
    if (connected == 0) return "no connection reached the socket";
    if (counted == 0) return "no connection was refused";
    return result;
  });
  testing::expect_all_well(outcomes);
}

}  // namespace
}  // namespace shoal::cuda
