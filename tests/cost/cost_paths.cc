// The paths whose instructions cost_test.py counts: cost_paths PATH REPETITIONS [EXTRA_WORK]; cost_paths paths; cost_paths
// compiler.
//
// callgrind counts only below shoal_cost_counted(), so neither set-up nor other threads count. No region waits: its input has
// arrived before it starts.
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <shoal/communicator.h>
#include <shoal/store.h>

#include "src/diagnosis/flight_record.h"
#include "src/diagnosis/recorder.h"
#include "src/plan/plan_cache.h"
#include "src/runtime/executor.h"
#include "src/selector/selector.h"
#include "transports/shm/shm.h"
#include "transports/tcp/tcp.h"

namespace {

using namespace shoal;
using Clock = std::chrono::steady_clock;

constexpr int kWarmUp = 20;

const char* program = "";  // its path, for the peer

struct Region {
  void (*run)(void* context);
  void* context;
  int extra_work;  ///< loop passes, to show that more work on a path is noticed
};

}  // namespace

extern "C" __attribute__((noinline)) void shoal_cost_counted(const Region& region) {
  for (int i = 0; i < region.extra_work; ++i) __asm__ volatile("" ::: "memory");
  region.run(region.context);
  __asm__ volatile("" ::: "memory");  // no tail call: callgrind watches this function return
}

namespace {

class Counter {
 public:
  Counter(int repetitions, int extra_work) : repetitions_(repetitions), extra_work_(extra_work) {}

  /// Counts each repetition of `body` after a warm-up that fills its caches; `before` prepares each run and is not counted.
  template <typename Before, typename Body>
  void count(Before before, Body body) const {
    for (int i = 0; i < kWarmUp; ++i) {
      before();
      body();
    }
    const Region region{[](void* context) { (*static_cast<Body*>(context))(); }, &body, extra_work_};
    for (int i = 0; i < repetitions_; ++i) {
      before();
      shoal_cost_counted(region);
    }
  }
  [[nodiscard]] int calls() const { return kWarmUp + repetitions_; }

 private:
  int repetitions_;
  int extra_work_;
};

[[noreturn]] void fail(const std::string& text) {
  fmt::print(stderr, "cost_paths: {}\n", text);
  std::exit(1);
}

void require(const Status& status) {
  if (!status.ok()) fail(status.to_string());
}

template <typename Value>
Value require(Result<Value> result) {
  require(result.status());
  return std::move(result).value();
}

/// Both ends of a link, in this process.
struct Pair {
  std::array<std::unique_ptr<Transport>, 2> ends;
  std::array<std::unique_ptr<Link>, 2> links;

  explicit Pair(std::unique_ptr<Transport> zero, std::unique_ptr<Transport> one) : ends{std::move(zero), std::move(one)} {
    const auto connect = [this](int rank) {
      const auto own = static_cast<std::size_t>(rank);
      const int peer = 1 - rank;
      const std::string address = ends[1 - own]->address();
      links[own] = std::move(
          require(ends[own]->connect(std::span(&peer, 1), std::span(&address, 1), Clock::now() + std::chrono::seconds(60)))[0]);
    };
    std::thread other(connect, 1);
    connect(0);
    other.join();
  }
};

/// One tile from try_send() to release(), sender and receiver together.
void count_tile(const Counter& counter, Pair pair) {
  constexpr std::size_t kBytes = 4096;  // fits a socket's buffer
  const std::vector<std::byte> data(kBytes, std::byte{7});
  TileHeader header;
  header.size_bytes = kBytes;
  const auto settle = [&] {
    for (int i = 0; i < 3; ++i) pair.ends[0]->progress(), pair.ends[1]->progress();
  };
  counter.count(settle, [&] {
    if (!pair.links[0]->try_send(header, data)) fail("the link accepts no tile");
    do {
      pair.ends[0]->progress();
      pair.ends[1]->progress();
    } while (pair.links[1]->peek() == nullptr);
    if (pair.links[1]->peek()->data.size() != kBytes) fail("the received tile differs from the sent one");
    pair.links[1]->release();
  });
}

void tile_shm(const Counter& counter) {
  const auto end = [](int rank) {
    return require(make_shm_transport({.rank = rank, .job_id = static_cast<std::uint64_t>(::getpid())}));
  };
  count_tile(counter, Pair(end(0), end(1)));
}

void tile_tcp(const Counter& counter) {
  const auto end = [](int rank) {
    TcpOptions options;
    options.interface_or_address = "127.0.0.1";
    options.sockets_per_peer = 1;
    options.job_id = static_cast<std::uint64_t>(::getpid());
    options.rank = rank;
    options.size = 2;
    return require(make_tcp_transport(options));
  };
  count_tile(counter, Pair(end(0), end(1)));
}

/// Small calls of one of two ranks of a host.
using SmallCall = Status (*)(Communicator&);

Status small_all_reduce(Communicator& communicator) {
  static std::array<float, 2> buffer{1, 2};
  return communicator.all_reduce(buffer.data(), buffer.data(), buffer.size(), DataType::float32, ReduceOp::max);
}
Status small_all_gather(Communicator& communicator) {
  static const std::array<float, 2> input{1, 2};
  static std::array<float, 4> output;
  return communicator.all_gather(input.data(), output.data(), input.size(), DataType::float32);
}
Status small_scatter(Communicator& communicator) {
  static const std::array<float, 4> input{1, 2, 3, 4};
  static std::array<float, 2> output;
  return communicator.scatter(input.data(), output.data(), output.size(), DataType::float32, 1);
}

/// By an algorithm that uses links.
Status all_reduce_over_links(Communicator& communicator) {
  static std::array<float, 256> buffer{};
  return communicator.all_reduce(buffer.data(), buffer.data(), buffer.size(), DataType::float32, ReduceOp::max);
}

struct NamedCall {
  const char* name;
  SmallCall call;
};
constexpr NamedCall kSmallCalls[] = {
    {"all_reduce", small_all_reduce}, {"all_gather", small_all_gather}, {"scatter", small_scatter}};

/// The counted rank enters each call last, so that it does not wait: `before` lets the peer enter first. The peer must not run
/// under callgrind, which would make one of the two wait for the other: it is a separate process, started by exec.
template <int kCall>
void call_shm(const Counter& counter) {
  const auto [name, call] = kSmallCalls[kCall];
  std::string folder = "/tmp/shoal-cost-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) fail("no temporary folder");
  const pid_t peer = ::fork();
  if (peer == 0) {
    ::execl(program, program, "peer", std::to_string(counter.calls()).c_str(), folder.c_str(), name, nullptr);
    ::_exit(127);
  }
  CommunicatorOptions options;
  options.transports = "shm";
  {
    const auto store = require(make_file_store(folder));
    const auto communicator = require(Communicator::create(*store, 0, 2, options));
    const auto let_peer_enter = [] { std::this_thread::sleep_for(std::chrono::milliseconds(4)); };
    counter.count(let_peer_enter, [&, call = call] { require(call(*communicator)); });
  }
  int status = 0;
  ::waitpid(peer, &status, 0);
  std::filesystem::remove_all(folder);
  if (status != 0) fail("the peer failed");
}

int run_peer(int calls, const std::string& folder, const std::string& name) {
  CommunicatorOptions options;
  options.transports = "shm";
  const auto store = require(make_file_store(folder));
  const auto communicator = require(Communicator::create(*store, 1, 2, options));
  for (const NamedCall& each : kSmallCalls) {
    for (int i = 0; name == each.name && i < calls; ++i) require(each.call(*communicator));
  }
  return 0;
}

/// A job of several ranks on this host, all but rank 0 in processes of their own. Ranks 0 and 1 are a group, and call an
/// all_reduce over links; the others make no call.
template <int kRanks, bool kTcp>
void call_in_group(const Counter& counter) {
  std::string folder = "/tmp/shoal-cost-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) fail("no temporary folder");
  ::setenv("SHOAL_ALGORITHM", "recursive_doubling", 1);
  ::setenv("SHOAL_TRANSPORTS", kTcp ? "tcp" : "shm", 1);
  std::array<int, 2> end{};  // closed at the end: then the other ranks leave
  if (::pipe(end.data()) != 0) fail("no pipe");
  std::vector<pid_t> peers;
  for (int rank = 1; rank < kRanks; ++rank) {
    peers.push_back(::fork());
    if (peers.back() != 0) continue;
    ::dup2(end[0], STDIN_FILENO);
    ::close(end[0]), ::close(end[1]);
    ::execl(program, program, "member", std::to_string(rank).c_str(), std::to_string(kRanks).c_str(), folder.c_str(),
            std::to_string(counter.calls()).c_str(), nullptr);
    ::_exit(127);
  }
  {
    const auto store = require(make_file_store(folder));
    const auto job = require(Communicator::create(*store, 0, kRanks, Communicator::options_from_environment()));
    const auto group = require(job->group(std::array{0, 1}));
    const auto let_peer_enter = [] { std::this_thread::sleep_for(std::chrono::milliseconds(4)); };
    counter.count(let_peer_enter, [&] { require(all_reduce_over_links(*group)); });
    ::close(end[1]);
  }
  for (const pid_t peer : peers) {
    int status = 0;
    ::waitpid(peer, &status, 0);
    if (status != 0) fail("a peer failed");
  }
  std::filesystem::remove_all(folder);
}

int run_member(int rank, int ranks, const std::string& folder, int calls) {
  const auto store = require(make_file_store(folder));
  const auto job = require(Communicator::create(*store, rank, ranks, Communicator::options_from_environment()));
  if (rank == 1) {
    const auto group = require(job->group(std::array{0, 1}));
    for (int i = 0; i < calls; ++i) require(all_reduce_over_links(*group));
  }
  char none = 0;
  return ::read(STDIN_FILENO, &none, 1) == 0 ? 0 : 1;
}

Collective all_reduce_of(std::size_t bytes) {
  return {CollectiveKind::all_reduce, bytes / sizeof(float), DataType::float32, ReduceOp::sum, 0};
}

/// 64 look-ups among 64 Plans.
void plan_look_up(const Counter& counter) {
  constexpr std::size_t kPlans = 64;
  PlanCache cache;
  std::vector<PlanKey> keys;
  for (std::size_t i = 0; i < kPlans; ++i) {
    keys.push_back({all_reduce_of(64 * (i + 1))});
    auto plan = std::make_unique<Plan>();
    plan->key = keys.back();
    if (cache.insert(plan) == nullptr) fail("the cache accepts no Plan");
  }
  counter.count([] {},
                [&] {
                  for (const PlanKey& key : keys) {
                    if (cache.find(key) == nullptr) fail("a Plan is lost");
                  }
                });
}

/// The cost of a disabled recorder for 64 tiles.
void recorder_off(const Counter& counter) {
  std::size_t events = 0;
  counter.count([] {},
                [&] {
                  for (int tile = 0; tile < 64; ++tile) {
                    const Recorder::Time begin = Recorder::now_if_on();
                    __asm__ volatile("" ::: "memory");  // the tile
                    if (Recorder::on()) [[unlikely]] {
                      Recorder::add({.begin = begin, .end = begin});
                      ++events;
                    }
                  }
                });
  if (events != 0) fail("the recorder is on");
}

/// The cost of 64 call signatures on a link: each is recorded and copied into a tile; the peer's is read and compared.
void signature(const Counter& counter) {
  std::vector<CallSignature> calls(64);
  for (std::size_t i = 0; i < calls.size(); ++i) calls[i].count = i;
  std::vector<CallSignature> written(kFlightRecordCalls);
  alignas(8) std::array<std::byte, sizeof(CallSignature)> tile{};
  counter.count([] {},
                [&] {
                  for (std::size_t i = 0; i < calls.size(); ++i) {
                    written[i] = calls[i];
                    std::memcpy(tile.data(), &calls[i], sizeof calls[i]);
                    __asm__ volatile("" ::: "memory");  // the transfer
                    const auto theirs = signature_in({{0, 0, kCallEdge, sizeof calls[i], 0}, tile});
                    if (!theirs || !(*theirs == calls[i])) fail("the signature changed");
                  }
                });
}

/// The choice for one call.
template <int Nodes, int RanksOfNode, std::size_t Bytes, CollectiveKind Kind = CollectiveKind::all_reduce>
void selector(const Counter& counter) {
  const Topology topology = Topology::uniform(Nodes, RanksOfNode);
  Collective collective = all_reduce_of(Bytes);
  collective.kind = Kind;
  counter.count([] {}, [&] { require(select(topology, collective).status()); });
}

struct Path {
  const char* name;
  void (*run)(const Counter&);
};
constexpr Path kPaths[] = {
    {"all_reduce_8_bytes_shm", call_shm<0>},
    {"all_gather_8_bytes_shm", call_shm<1>},
    {"scatter_8_bytes_shm", call_shm<2>},
    {"group_of_2_in_job_of_2_shm", call_in_group<2, false>},
    {"group_of_2_in_job_of_32_shm", call_in_group<32, false>},
    {"group_of_2_in_job_of_2_tcp", call_in_group<2, true>},
    {"group_of_2_in_job_of_16_tcp", call_in_group<16, true>},
    {"tile_shm", tile_shm},
    {"tile_tcp", tile_tcp},
    {"plan_look_up", plan_look_up},
    {"recorder_off", recorder_off},
    {"signature", signature},
    {"selector", selector<2, 4, 1 << 20>},
    {"selector_1x32", selector<1, 32, 1 << 10>},
    {"selector_32x8", selector<32, 8, 1 << 20>},
    {"selector_128x8_broadcast", selector<128, 8, 1 << 10, CollectiveKind::broadcast>},
    {"selector_128x8_gather", selector<128, 8, 1 << 10, CollectiveKind::gather>},
    {"selector_128x8_reduce_scatter", selector<128, 8, 1 << 10, CollectiveKind::reduce_scatter>},
};

#ifdef __clang__
constexpr const char* kCompiler = "clang++";
constexpr int kCompilerVersion = __clang_major__;
#else
constexpr const char* kCompiler = "g++";
constexpr int kCompilerVersion = __GNUC__;
#endif

}  // namespace

int main(int argc, char** argv) {
  program = argv[0];
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "member" && argc == 6) return run_member(std::atoi(argv[2]), std::atoi(argv[3]), argv[4], std::atoi(argv[5]));
  if (what == "peer" && argc == 5) return run_peer(std::atoi(argv[2]), argv[3], argv[4]);
  if (what == "compiler") return fmt::print("{} {}\n", kCompiler, kCompilerVersion), 0;
  for (const Path& path : kPaths) {
    if (what == "paths") fmt::print("{}\n", path.name);
    if (what != path.name || argc < 3) continue;
    path.run(Counter(std::atoi(argv[2]), argc > 3 ? std::atoi(argv[3]) : 0));
    return 0;
  }
  if (what == "paths") return 0;
  fmt::print(stderr, "usage: cost_paths PATH REPETITIONS [EXTRA_WORK] | paths | compiler\n");
  return 2;
}
