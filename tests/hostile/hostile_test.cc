// A job at start-up, when it listens, in the middle of strangers: junk, scans, half-open and slow connections, recordings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include <shoal/communicator.h>
#include <shoal/store.h>

#include "src/bootstrap/job_key.h"
#include "src/bootstrap/socket.h"
#include "src/bootstrap/store_session.h"
#include "src/communicator/job_config.h"
#include "src/trust/refusals.h"
#include "tests/hostile/attacker.h"
#include "tests/multiprocess/ranks.h"
#include "transports/tcp/wire.h"

namespace shoal::hostile {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRanks = 4;
constexpr int kAttacker = kRanks;  // one more process beside the ranks
constexpr auto kPatience = std::chrono::seconds(240);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kDefaultInputs = 4'000;
constexpr bool kMemoryCounts = false;  // sanitizers keep what was freed
#else
constexpr int kDefaultInputs = 100'000;
constexpr bool kMemoryCounts = true;
#endif
constexpr long kMostGrowthBytes = 8 << 20;

/// SHOAL_HOSTILE_INPUTS: for longer runs.
int wanted_inputs() {
  const char* wanted = std::getenv("SHOAL_HOSTILE_INPUTS");
  return wanted == nullptr ? kDefaultInputs : std::atoi(wanted);
}

Clock::time_point patience() { return Clock::now() + kPatience; }

// A file of the run's directory says that something has happened, and may hold a word about it.
void tell(const std::string& directory, const std::string& what, const std::string& word = "yes") {
  std::ofstream(directory + "/." + what) << word;
  std::filesystem::rename(directory + "/." + what, directory + "/" + what);
}
std::string hear(const std::string& directory, const std::string& what) {
  for (const auto until = patience(); Clock::now() < until; std::this_thread::sleep_for(std::chrono::milliseconds(5))) {
    std::string word;
    if (std::ifstream(directory + "/" + what) >> word) return word;
  }
  return {};
}

/// A store's part, by a prefix of its keys. Before `pause_at` is looked up it waits for `go`.
class PartOfStore final : public Store {
 public:
  PartOfStore(Store& store, std::string prefix, std::string pause_at = {}, std::function<void()> pause = {})
      : store_(store), prefix_(std::move(prefix)), pause_at_(std::move(pause_at)), pause_(std::move(pause)) {}
  Status set(std::string_view key, std::string_view value) override { return store_.set(prefix_ + std::string(key), value); }
  Result<std::string> get(std::string_view key, Clock::time_point deadline) override {
    if (key == pause_at_) pause_();
    return store_.get(prefix_ + std::string(key), deadline);
  }

 private:
  Store& store_;
  std::string prefix_;
  std::string pause_at_;
  std::function<void()> pause_;
};

/// Sums again and again, until rank 0 says in the sum itself that it is enough. Returns what was wrong.
std::string keep_summing(Communicator& communicator, const std::atomic<bool>& enough, int* calls) {
  constexpr std::size_t kCount = 3000;
  std::vector<float> data(kCount);
  for (*calls = 0;; ++*calls) {
    const auto base = static_cast<float>(*calls % 1000);
    for (std::size_t i = 0; i < kCount; ++i)
      data[i] = base + static_cast<float>(communicator.rank()) + static_cast<float>(i % 7);
    data[0] = communicator.rank() == 0 && enough ? 1 : 0;
    const Status status = communicator.all_reduce(data.data(), data.data(), kCount, DataType::float32, ReduceOp::sum);
    if (!status.ok()) return "a sum of the first communicator failed: " + status.to_string();
    for (std::size_t i = 1; i < kCount; ++i) {
      const float right = kRanks * (base + static_cast<float>(i % 7)) + kRanks * (kRanks - 1) / 2.0F;
      if (data[i] != right) return "call " + std::to_string(*calls) + " has a wrong sum";
    }
    if (data[0] != 0) return {};
  }
}

std::string rank_body(int rank, int port, const std::string& directory) {
  auto store = make_tcp_store("127.0.0.1", port, rank == 0, "hostile", patience());
  if (!store.ok()) return store.status().to_string();
  CommunicatorOptions options;
  options.timeout = kPatience;
  PartOfStore first_part(**store, "first/");
  auto first = Communicator::create(first_part, rank, kRanks, options);
  if (!first.ok()) return "first: " + first.status().to_string();
  std::atomic<bool> enough = false;
  std::string wrong;
  int calls = 0;
  std::thread worker([&] { wrong = keep_summing(**first, enough, &calls); });

  // The last rank has told its addresses and now hesitates to connect: all others wait for it, with open listeners.
  tell(directory, "pid." + std::to_string(rank), std::to_string(::getpid()));
  const bool late = rank == kRanks - 1;
  PartOfStore second_part(**store, "second/", late ? "network/0" : "-", [&] {
    tell(directory, "listening");
    hear(directory, "go");
  });
  auto second = Communicator::create(second_part, rank, kRanks, options);
  enough = true;
  worker.join();
  if (!wrong.empty()) return wrong;
  if (calls < 10) return "only " + std::to_string(calls) + " sums while the other communicator was made";
  if (!second.ok()) return "second: " + second.status().to_string();

  double refused = static_cast<double>(refusals().count);
  if (Status status = (*second)->all_reduce(&refused, &refused, 1, DataType::float64, ReduceOp::sum); !status.ok())
    return status.to_string();
  const double delivered = std::stod("0" + hear(directory, "delivered"));
  if (rank == 0) {
    std::cout << delivered << " hostile connections, " << refused << " refused, " << calls << " right sums meanwhile"
              << std::endl;
  }
  // Connections that are reset before they are accepted may be lost on the way.
  if (refused < 0.95 * delivered) return "only " + std::to_string(refused) + " connections were counted as refused";
  if ((*second)->barrier().code() != StatusCode::ok) return "no last barrier";
  return {};
}

long resident_bytes(pid_t pid) {
  long total = 0;
  long resident = 0;
  std::ifstream("/proc/" + std::to_string(pid) + "/statm") >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

long descriptors(pid_t pid) {
  std::error_code error;
  const std::filesystem::directory_iterator files("/proc/" + std::to_string(pid) + "/fd", error);
  return std::distance(begin(files), end(files));
}

std::string read_some(int fd, std::size_t bytes) {
  std::string text(bytes, '\0');
  return receive_all(fd, text.data(), bytes, patience()).ok() ? text : std::string();
}

/// What a listener in the right place could have recorded of this job: a whole handshake of a client of the store, and the
/// greetings of the late rank to the control listeners of the others.
Result<std::vector<Recording>> record(int store_port, const std::vector<Target>& targets, const std::vector<pid_t>& pids) {
  const auto key = job_key();
  auto store = make_tcp_store("127.0.0.1", store_port, false, "hostile", patience());
  if (!store.ok()) return store.status();
  const auto text = (*store)->get("second/config", patience());
  if (!text.ok()) return text.status();
  const auto config = parse_job_config(*text, key->key);
  if (!config.ok()) return config.status();

  std::vector<Recording> recordings;
  auto socket = connect_to("127.0.0.1", store_port, patience());
  if (!socket.ok()) return socket.status();
  const Nonce mine = random_nonce();
  const std::string hello = store_hello("hostile", mine);
  static_cast<void>(send_all(socket->get(), hello.data(), hello.size(), patience()));
  read_some(socket->get(), 1 + 4 + 7);
  Nonce theirs;
  static_cast<void>(receive_all(socket->get(), theirs.data(), theirs.size(), patience()));
  recordings.push_back({store_port, hello + std::string(as_text(store_client_proof(key->key, "hostile", mine, theirs)))});

  tcp::Hello greeting;
  greeting.job_id = config->job_id ^ 0x636F6E74726F6C;
  greeting.from_rank = kRanks - 1;
  greeting.size = kRanks;
  greeting.sockets = 1;
  greeting.tile_bytes = 4096;
  greeting.integrity = config->integrity == shoal::Integrity::off ? 0 : 1;  // encryption is off
  greeting.nonce = random_nonce();
  for (const Target& target : targets) {
    if (!target.tcp || target.port == store_port) continue;
    for (std::size_t rank = 0; rank + 1 < pids.size(); ++rank) {
      if (pids[rank] != target.pid) continue;
      greeting.to_rank = static_cast<std::uint32_t>(rank);
      const auto bytes = tcp::encode(greeting, derive_key(link_key(key->key, *config), "control"));
      recordings.push_back({target.port, std::string(as_text(bytes))});
    }
  }
  return recordings;
}

std::string attacker_body(int port, int inputs, std::uint64_t seed, const std::string& directory) {
  std::vector<pid_t> pids;
  for (int rank = 0; rank < kRanks; ++rank) pids.push_back(std::atoi(hear(directory, "pid." + std::to_string(rank)).c_str()));
  if (hear(directory, "listening").empty()) return "the job did not come to listen";
  const auto targets = find_targets(pids);
  const auto unix_targets = std::count_if(targets.begin(), targets.end(), [](const Target& one) { return !one.tcp; });
  // The store, a control and a data listener of each rank, and the socket of shared memory of each.
  if (targets.size() < 1 + 2 * kRanks || unix_targets < 1)
    return "found only " + std::to_string(targets.size()) + " listeners, " + std::to_string(unix_targets) +
           " of them Unix sockets";
  for (const Target& target : targets) {
    if (target.tcp && target.address != "127.0.0.1") return "a listener is bound to " + target.address;
  }
  auto recordings = record(port, targets, pids);
  if (!recordings.ok()) return "record: " + recordings.status().to_string();
  Attacker attacker(targets, std::move(*recordings), seed);
  const int served = attacker.probe(kRanks, 60);
  if (served < kRanks) return "only " + std::to_string(served) + " listeners answer junk by closing";

  std::vector<long> memory;
  std::vector<long> open;
  for (int i = 0; i < inputs; ++i) {
    if (i == inputs / 10) {
      attacker.leave();
      for (const pid_t pid : pids) memory.push_back(resident_bytes(pid));
    }
    attacker.input();
  }
  attacker.leave();
  std::string wrong;
  for (std::size_t rank = 0; rank < pids.size(); ++rank) {
    const long growth = resident_bytes(pids[rank]) - memory[rank];
    if (kMemoryCounts && growth > kMostGrowthBytes)
      wrong += "rank " + std::to_string(rank) + " grew by " + std::to_string(growth) + " bytes; ";
  }
  // What is dropped is closed, too: no rank holds more than its own links and what a listener that is not served has queued.
  for (std::size_t rank = 0; rank < pids.size(); ++rank) {
    const auto until = Clock::now() + std::chrono::seconds(30);
    while (descriptors(pids[rank]) > 100 && Clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (descriptors(pids[rank]) > 100)
      wrong += "rank " + std::to_string(rank) + " holds " + std::to_string(descriptors(pids[rank])) + " descriptors; ";
  }
  tell(directory, "delivered", std::to_string(attacker.delivered()));
  tell(directory, "go");
  return wrong;
}

TEST(Hostile, AJobStartsAndGoesOnAmongStrangers) {
  const int inputs = wanted_inputs();
  const std::uint64_t seed = 20261121;
  std::cout << inputs << " inputs, seed " << seed << "\n";
  ::setenv("SHOAL_JOB_KEY", to_hex(random_key()).c_str(), 1);
  ::setenv("SHOAL_HOST_ADDRESS", "127.0.0.1", 1);
  const auto port = free_port("127.0.0.1");
  ASSERT_TRUE(port.ok());
  const auto start = Clock::now();
  const auto outcomes = testing::run_ranks(
      kRanks + 1,
      [&](int rank, int, const std::string& directory) {
        if (rank != kAttacker) return rank_body(rank, *port, directory);
        std::string wrong = attacker_body(*port, inputs, seed, directory);
        if (!wrong.empty()) tell(directory, "go");
        return wrong;
      },
      std::chrono::duration<double>(kPatience).count() + inputs / 500.0);
  ::unsetenv("SHOAL_JOB_KEY");
  ::unsetenv("SHOAL_HOST_ADDRESS");
  for (int rank = 0; rank <= kRanks; ++rank) {
    const auto& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(outcome.output + testing::bad_end(outcome), "")
        << (rank == kAttacker ? "attacker" : "rank " + std::to_string(rank));
  }
  std::cout << std::chrono::duration<double>(Clock::now() - start).count() << " s\n";
}

}  // namespace
}  // namespace shoal::hostile
