// How ranks join without Python: where c10d's store listens, and that shoal's groups do not use it.
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "bench/train/job.h"
#include "tests/facts.h"
#include "torch_plugin/process_group/join.h"
#include "torch_plugin/process_group/listener.h"

namespace shoal::torch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using Environment = std::map<std::string, std::string>;

void set(const Environment& environment) {
  ::unsetenv("SHOAL_HOST_ADDRESS");
  ::unsetenv("SHOAL_SOCKET_IFNAME");
  for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
}

/// "0300007F" of /proc/net/tcp as "127.0.0.3", and the like of tcp6.
std::string address_of(const std::string& hex) {
  std::array<std::uint32_t, 4> words{};
  for (std::size_t i = 0; 8 * i < hex.size() && i < words.size(); ++i)
    words[i] = static_cast<std::uint32_t>(std::stoul(hex.substr(8 * i, 8), nullptr, 16));
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(hex.size() == 8 ? AF_INET : AF_INET6, words.data(), text.data(), text.size());
  return text.data();
}

/// "127.0.0.3:4711" of every socket of this process that listens.
std::set<std::string> listeners() {
  std::set<std::string> own;  // "socket:[inode]"
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the folder's own descriptor
    own.insert(std::filesystem::read_symlink(entry.path(), gone).string());
  }
  std::set<std::string> found;
  std::string line;
  for (const char* const file : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream sockets(file);
    for (std::getline(sockets, line); std::getline(sockets, line);) {
      // sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode
      std::istringstream words(line);
      std::array<std::string, 10> word;
      for (std::string& one : word) words >> one;
      if (word[3] != "0A" || !own.contains("socket:[" + word[9] + "]")) continue;
      const std::size_t colon = word[1].find(':');
      found.insert(address_of(word[1].substr(0, colon)) + ":" +
                   std::to_string(std::stoul(word[1].substr(colon + 1), nullptr, 16)));
    }
  }
  return found;
}

bool has_ipv6_loopback() {
  const Result<Listener> there = listen_on("::1");
  if (there.ok()) ::close(there->socket);
  return there.ok();
}

void check(bool right, const std::string& what) {
  if (!right) throw std::runtime_error("not so: " + what);
}

/// Forks two ranks with the environment of `shoal run`, which run `body(rank)`.
void run_ranks(const Environment& environment, const std::function<void(int)>& body) {
  const Result<Listener> free = listen_on("127.0.0.1");
  ASSERT_TRUE(free.ok()) << free.status().message();
  ::close(free->socket);
  std::vector<pid_t> children;
  for (int rank = 0; rank < 2; ++rank) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(60);
      set(environment);
      const Environment job{{"SHOAL_RANK", std::to_string(rank)},
                            {"SHOAL_SIZE", "2"},
                            {"SHOAL_MASTER_ADDR", "127.0.0.1"},
                            {"SHOAL_MASTER_PORT", std::to_string(free->port)},
                            {"SHOAL_JOB_ID", "join_test"}};
      for (const auto& [name, value] : job) ::setenv(name.c_str(), value.c_str(), 1);
      int code = 1;
      try {
        body(rank);
        code = 0;
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      }
      std::_Exit(code);
    }
    children.push_back(child);
  }
  for (std::size_t rank = 0; rank < children.size(); ++rank) {
    int outcome = 0;
    ASSERT_EQ(waitpid(children[rank], &outcome, 0), children[rank]);
    EXPECT_TRUE(WIFEXITED(outcome) && WEXITSTATUS(outcome) == 0) << "rank " << rank << ": " << outcome;
  }
}

// This test comes first, because threads of later tests would not survive a fork.
TEST(OpenStore, PeersConnectAtChosenAddress) {
  std::vector<std::string> addresses{"127.0.0.3"};
  if (has_ipv6_loopback()) addresses.emplace_back("::1");
  for (const std::string& address : addresses) {
    SCOPED_TRACE(address);
    run_ranks({{"SHOAL_HOST_ADDRESS", address}}, [&](int rank) {
      Result<std::unique_ptr<Communicator>> communicator = Communicator::create();
      check(communicator.ok(), communicator.status().message());
      const std::set<std::string> before = listeners();
      Result<c10::intrusive_ptr<c10d::Store>> store = open_store(**communicator, seconds(20));
      check(store.ok(), store.status().message());
      for (const std::string& one : listeners()) check(before.contains(one) || one.starts_with(address + ":"), one);
      (*store)->set("from " + std::to_string(rank), std::vector<std::uint8_t>{7});
      check((*store)->get("from " + std::to_string(1 - rank)) == std::vector<std::uint8_t>{7}, "the value of the other rank");
      check((*communicator)->barrier().ok(), "both ranks are done");
    });
  }
}

// The job's links are authenticated by its key, but c10d's store does not know the key. So shoal's groups must not use the
// store.
TEST(Training, ShoalGroupsDoNotUseStore) {
  run_ranks({}, [](int rank) {
    constexpr milliseconds kTimeout(3000);
    Result<train::Job> job = train::join_job(kTimeout, /*needs_store=*/false);
    check(job.ok(), job.status().message());
    check(dynamic_cast<c10d::HashStore*>(job->store.get()) != nullptr, "no rank serves a store that is not needed");
    const auto clock = std::make_shared<train::CommClock>();
    const auto group = train::make_group(*job, kBackendName, "shoal", clock);
    check(group.ok(), group.status().message());
    std::vector<at::Tensor> tensors{at::full({1000}, rank + 1, at::kFloat)};
    check((*group)->allreduce(tensors)->wait(), "the sum arrives");
    check(tensors[0].eq(3).all().item<bool>(), "it is a sum");
    // The job's timeout is the timeout of the group's calls.
    const auto start = steady_clock::now();
    if (rank == 0) {
      std::string message;
      try {
        (*group)->allreduce(tensors)->wait();
      } catch (const std::exception& error) {
        message = error.what();
      }
      const auto took = steady_clock::now() - start;
      check(testing::mentions(message, "rank 0", "timed out"), "a timeout: " + message);
      check(took >= kTimeout && took < 3 * kTimeout, "the timeout comes in time");
    }
    check(job->control->barrier({.timeout = seconds(20)}).ok(), "a failed group does not affect the job");
  });
}

TEST(JoinJob, StoreListensAtChosenAddressOnly) {
  std::vector<std::pair<Environment, std::string>> cases{
      {{}, "127.0.0.1"}, {{{"SHOAL_HOST_ADDRESS", "127.0.0.3"}}, "127.0.0.3"}, {{{"SHOAL_SOCKET_IFNAME", "lo"}}, "127.0.0.1"}};
  if (has_ipv6_loopback()) cases.push_back({{{"SHOAL_HOST_ADDRESS", "::1"}}, "::1"});
  for (const auto& [environment, address] : cases) {
    SCOPED_TRACE(address);
    set(environment);
    const std::set<std::string> before = listeners();
    {
      const auto group = join_job();
      std::vector<std::string> added;
      for (const std::string& one : listeners()) {
        if (!before.contains(one)) added.push_back(one);
      }
      ASSERT_EQ(added.size(), 1U) << "only the store listens";
      EXPECT_TRUE(added[0].starts_with(address + ":")) << added[0];
    }
    EXPECT_EQ(listeners(), before) << "the store is closed with the group";
  }
  set({});
}

TEST(Listener, AddressOfOtherHostNamesSetting) {
  const Result<Listener> nowhere = listen_on("203.0.113.7");  // reserved for documentation
  ASSERT_FALSE(nowhere.ok());
  EXPECT_EQ(nowhere.status().code(), StatusCode::system_error);
  EXPECT_TRUE(
      testing::mentions(nowhere.status().message(), "203.0.113.7", "Cannot assign requested address", "SHOAL_HOST_ADDRESS"))
      << nowhere.status().message();
  EXPECT_FALSE(listen_on("no such host.").ok());
  set({{"SHOAL_HOST_ADDRESS", "203.0.113.7"}});
  EXPECT_THROW(join_job(), c10::DistBackendError);
  set({});
}

}  // namespace
}  // namespace shoal::torch
