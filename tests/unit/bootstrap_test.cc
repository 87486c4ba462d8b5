// How ranks find each other: what launchers say, the file store, the TCP store and those who disturb it.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <shoal/store.h>

#include "src/bootstrap/exchange.h"
#include "src/bootstrap/launch.h"
#include "src/bootstrap/socket.h"
#include "src/bootstrap/store_session.h"
#include "src/bootstrap/tcp_store.h"
#include "src/trust/refusals.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr auto kPatience = std::chrono::seconds(60);  // far above what any machine needs

Clock::time_point in(Clock::duration time) { return Clock::now() + time; }

// --- what launchers say

using Variables = std::map<std::string, std::string>;

Result<Launch> detect(const Variables& variables) {
  return detect_launch([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

/// `base` with some variables changed.
Variables with(Variables base, const Variables& changes) {
  for (const auto& [name, value] : changes) base[name] = value;
  return base;
}

Variables without(Variables base, const std::string& name) {
  base.erase(name);
  return base;
}

void expect_refused(const Variables& variables, const std::string& words) {
  const auto launch = detect(variables);
  ASSERT_FALSE(launch.ok()) << words << ": taken as rank " << launch->rank << " of " << launch->size << " of "
                            << launch->launcher;
  EXPECT_EQ(launch.status().code(), StatusCode::invalid_argument);
  EXPECT_THAT(launch.status().message(), HasSubstr(words));
}

const Variables kShoalRun{{"SHOAL_RANK", "2"},
                          {"SHOAL_SIZE", "4"},
                          {"SHOAL_MASTER_ADDR", "10.0.0.1"},
                          {"SHOAL_MASTER_PORT", "4711"},
                          {"SHOAL_JOB_ID", "job"}};
const Variables kMpirun{{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "8"}, {"PMIX_NAMESPACE", "prterun-1"}};
const Variables kTorchrun{
    {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}, {"TORCHELASTIC_RUN_ID", "run7"}};
const Variables kSrun{{"SLURM_PROCID", "5"},
                      {"SLURM_STEP_NUM_TASKS", "6"},
                      {"SLURM_JOB_ID", "1234567"},
                      {"SLURM_STEP_ID", "0"},
                      {"SLURM_STEP_NODELIST", "gpu[07-09]"}};

TEST(DetectLaunch, OneRankWhereNoLauncherSpeaks) {
  for (const Variables& nothing : {Variables{}, Variables{{"SHOAL_RANK", ""}, {"RANK", ""}, {"WORLD_SIZE", ""}},
                                   Variables{{"SLURM_JOB_ID", "1"}, {"SLURM_PROCID", "0"}}}) {
    const auto launch = detect(nothing);
    ASSERT_TRUE(launch.ok()) << launch.status().to_string();
    EXPECT_EQ(launch->launcher, "none");
    EXPECT_EQ(launch->rank, 0);
    EXPECT_EQ(launch->size, 1);
  }
}

TEST(DetectLaunch, EachLauncherIsUnderstood) {
  const auto expect = [](const Variables& variables, const Launch& wanted) {
    const auto launch = detect(variables);
    ASSERT_TRUE(launch.ok()) << launch.status().to_string();
    EXPECT_EQ(launch->launcher, wanted.launcher);
    EXPECT_EQ(launch->rank, wanted.rank);
    EXPECT_EQ(launch->size, wanted.size);
    EXPECT_EQ(launch->master_host, wanted.master_host);
    EXPECT_EQ(launch->master_port, wanted.master_port);
    EXPECT_EQ(launch->job, wanted.job);
  };
  expect(kShoalRun, {"shoal run", 2, 4, "10.0.0.1", 4711, "job"});
  expect(kMpirun, {"mpirun", 3, 8, "", 0, "prterun-1"});
  expect(kTorchrun, {"torchrun", 1, 2, "node0", 29529, "run7"});
  expect(kSrun, {"srun", 5, 6, "gpu07", 20000 + 1234567 % 20000, "1234567.0"});
  // The nearest launcher counts: shoal run above mpirun above torchrun above srun.
  expect(with(kSrun, kTorchrun), {"torchrun", 1, 2, "node0", 29529, "run7"});
  expect(with(with(kSrun, kTorchrun), kMpirun), {"mpirun", 3, 8, "", 0, "prterun-1"});
  expect(with(with(with(kSrun, kTorchrun), kMpirun), kShoalRun), {"shoal run", 2, 4, "10.0.0.1", 4711, "job"});
  // One half of torchrun's environment, set by a batch script, does not hide srun.
  expect(with(kSrun, {{"WORLD_SIZE", "6"}}), {"srun", 5, 6, "gpu07", 20000 + 1234567 % 20000, "1234567.0"});
}

TEST(DetectLaunch, ShoalsOwnVariablesWinOverTheLaunchers) {
  for (const Variables& launcher : {kMpirun, kTorchrun, kSrun}) {
    const auto launch =
        detect(with(launcher, {{"SHOAL_MASTER_ADDR", "here"}, {"SHOAL_MASTER_PORT", "81"}, {"SHOAL_JOB_ID", "mine"}}));
    ASSERT_TRUE(launch.ok()) << launch.status().to_string();
    EXPECT_EQ(launch->master_host, "here");
    EXPECT_EQ(launch->master_port, 81);
    EXPECT_EQ(launch->job, "mine");
    expect_refused(with(launcher, {{"SHOAL_MASTER_PORT", "port"}}), "SHOAL_MASTER_PORT='port' is not a number from 1 to 65535");
    const auto unset = detect(with(launcher, {{"SHOAL_MASTER_PORT", ""}}));
    ASSERT_TRUE(unset.ok()) << unset.status().to_string();
    EXPECT_EQ(unset->master_port, detect(launcher)->master_port);
  }
  // With a port of our own, the launcher's does not matter.
  EXPECT_TRUE(detect(with(without(kTorchrun, "MASTER_PORT"), {{"SHOAL_MASTER_PORT", "81"}})).ok());
  EXPECT_TRUE(detect(with(without(kSrun, "SLURM_JOB_ID"), {{"SHOAL_MASTER_PORT", "81"}})).ok());
}

TEST(DetectLaunch, WhatMakesNoSenseIsNamed) {
  const auto number_words = [](const std::string& name, const std::string& value, const char* range) {
    return name + "='" + value + "' is not a number from " + range;
  };
  const struct {
    const Variables& base;
    const char *rank, *size, *range;
  } launchers[] = {{kShoalRun, "SHOAL_RANK", "SHOAL_SIZE", "0 to 3"},
                   {kMpirun, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "0 to 7"},
                   {kTorchrun, "RANK", "WORLD_SIZE", "0 to 1"},
                   {kSrun, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "0 to 5"}};
  for (const auto& [base, rank, size, range] : launchers) {
    for (const char* value : {"-1", "8", "x", "1x", " 1", "1.0", "99999999999"}) {
      expect_refused(with(base, {{rank, value}}), number_words(rank, value, range));
    }
    for (const char* value : {"0", "-4", "many", "65537", "99999999999"}) {
      expect_refused(with(base, {{size, value}}), number_words(size, value, "1 to 65536"));
    }
  }
  expect_refused(without(kShoalRun, "SHOAL_SIZE"), "environment of shoal run: SHOAL_SIZE is not set");
  expect_refused(without(kMpirun, "OMPI_COMM_WORLD_SIZE"), "environment of mpirun: OMPI_COMM_WORLD_SIZE is not set");
  expect_refused(without(kTorchrun, "WORLD_SIZE"), "environment of torchrun: WORLD_SIZE is not set");
  expect_refused(without(kTorchrun, "RANK"), "environment of torchrun: RANK is not set");
  expect_refused(without(kTorchrun, "MASTER_PORT"), "MASTER_PORT is not set");
  for (const char* port : {"0", "65536", "65510", "http"}) {
    expect_refused(with(kTorchrun, {{"MASTER_PORT", port}}), number_words("MASTER_PORT", port, "1 to 65506"));
  }
  expect_refused(without(kSrun, "SLURM_JOB_ID"), "SLURM_JOB_ID is not set");
  expect_refused(with(kSrun, {{"SLURM_JOB_ID", "abc"}}), number_words("SLURM_JOB_ID", "abc", "0 to 2147483647"));
}

TEST(DetectLaunch, SeveralRanksNeedAnAddress) {
  const char* advice = "no address for rank 0; set SHOAL_MASTER_ADDR and SHOAL_MASTER_PORT";
  expect_refused(without(kShoalRun, "SHOAL_MASTER_ADDR"), advice);
  expect_refused(without(kShoalRun, "SHOAL_MASTER_PORT"), advice);
  expect_refused(without(kTorchrun, "MASTER_ADDR"), std::string("MASTER_ADDR gives ") + advice);
  expect_refused(with(kSrun, {{"SLURM_STEP_NODELIST", "gpu[1"}}), std::string("SLURM_STEP_NODELIST gives ") + advice);
  // One rank meets nobody.
  EXPECT_TRUE(detect({{"SHOAL_RANK", "0"}, {"SHOAL_SIZE", "1"}}).ok());
  EXPECT_TRUE(detect({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).ok());
  EXPECT_TRUE(detect({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}}).ok());
}

TEST(FirstSlurmHost, ReadsHostListsAndRefusesRubbish) {
  const std::pair<const char*, const char*> lists[] = {
      {"node1", "node1"},
      {"node1,node2", "node1"},
      {"node[03-07,9],x1", "node03"},
      {"node[9]", "node9"},
      {"node[1,2]-ib0,x", "node1-ib0"},
      {"rack[0-3]n[10-12]", "rack0n10"},
      {"a,b[1-2]", "a"},
      {"", ""},
      {"n[1-2", ""},
      {"n[]", ""},
      {"n[-3]", ""},
      {"n]", ""},
      {"[", ""},
  };
  for (const auto& [list, host] : lists) EXPECT_EQ(first_slurm_host(list), host) << list;
}

// --- what every store does

/// Makes stores that see each other; the first is the server where there is one.
using StoreFactory = std::function<std::unique_ptr<Store>()>;

void expect_a_dictionary_for_all_threads(const StoreFactory& make) {
  constexpr int kThreads = 6;
  constexpr int kKeys = 40;
  std::vector<std::unique_ptr<Store>> stores;
  for (int t = 0; t < kThreads; ++t) {
    stores.push_back(make());
    ASSERT_NE(stores.back(), nullptr);
  }
  const auto key = [](int t, int k) { return "rank " + std::to_string(t) + "/\xff%.." + std::to_string(k); };
  const auto value = [&key](int t, int k) {
    return std::string(static_cast<std::size_t>(k * 97), static_cast<char>(t)) + '\0' + key(t, k);
  };
  std::vector<std::string> errors(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Store& store = *stores[static_cast<std::size_t>(t)];
      std::string& error = errors[static_cast<std::size_t>(t)];
      for (int k = 0; k < kKeys && error.empty(); ++k) {
        if (const Status status = store.set(key(t, k), value(t, k)); !status.ok()) error = status.to_string();
        // Mostly before the other has written it: the reader waits.
        const int other = (t + 1 + k) % kThreads;
        const auto got = store.get(key(other, k), in(kPatience));
        if (!got.ok())
          error = got.status().to_string();
        else if (*got != value(other, k))
          error = "wrong value of " + key(other, k);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

void expect_timeouts_that_name_the_key(const StoreFactory& make) {
  const auto one = make();
  const auto other = make();
  ASSERT_TRUE(one != nullptr && other != nullptr);
  for (const milliseconds patience : {milliseconds(-1000), milliseconds(0), milliseconds(50)}) {
    const auto start = Clock::now();
    const auto missing = other->get("absent", in(patience));
    ASSERT_FALSE(missing.ok());
    EXPECT_EQ(missing.status().code(), StatusCode::timeout) << missing.status().to_string();
    EXPECT_THAT(missing.status().message(), HasSubstr("key 'absent'"));
    EXPECT_GE(Clock::now() - start, patience);
  }
  // The store is as good as before: answers are not mixed up, even where the late key comes after all.
  ASSERT_TRUE(one->set("absent", "late").ok());
  ASSERT_TRUE(other->set("second", "2").ok());
  for (Store* store : {one.get(), other.get()}) {
    EXPECT_EQ(store->get("second", in(kPatience)).value(), "2");
    EXPECT_EQ(store->get("absent", in(kPatience)).value(), "late");
  }
}

void expect_ranks_to_exchange_and_name_who_is_missing(const StoreFactory& make) {
  constexpr int kRanks = 5;
  std::vector<std::unique_ptr<Store>> stores;
  for (int r = 0; r < kRanks; ++r) stores.push_back(make());
  std::vector<std::string> seen(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      const auto all = exchange(*stores[static_cast<std::size_t>(r)], "name", r, kRanks,
                                std::string(1, static_cast<char>('a' + r)), in(kPatience));
      std::string& text = seen[static_cast<std::size_t>(r)];
      if (!all.ok()) text = all.status().to_string();
      for (int i = 0; all.ok() && i < kRanks; ++i) text += (*all)[static_cast<std::size_t>(i)];
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : seen) EXPECT_EQ(text, "abcde");
  const auto missing = exchange(*stores[0], "second", 0, 2, "x", in(milliseconds(20)));
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), StatusCode::timeout);
  EXPECT_THAT(missing.status().message(), HasSubstr("start-up (second): rank 1 of 2 has not come"));
}

// --- file store

class FileStore : public ::testing::Test {
 protected:
  FileStore() {
    char pattern[] = "/tmp/shoal-test-XXXXXX";
    directory_ = ::mkdtemp(pattern);
  }
  ~FileStore() override { std::filesystem::remove_all(directory_); }

  [[nodiscard]] StoreFactory factory() const {
    return [this] {
      auto store = make_file_store(directory_ + "/of/a/job");
      EXPECT_TRUE(store.ok()) << store.status().to_string();
      return store.ok() ? std::move(*store) : nullptr;
    };
  }

  std::string directory_;
};

TEST_F(FileStore, IsADictionaryForAllThreads) { expect_a_dictionary_for_all_threads(factory()); }
TEST_F(FileStore, TimeoutsNameTheKey) { expect_timeouts_that_name_the_key(factory()); }
TEST_F(FileStore, RanksExchangeAndNameWhoIsMissing) { expect_ranks_to_exchange_and_name_who_is_missing(factory()); }

TEST_F(FileStore, KeysCannotLeaveTheDirectory) {
  const auto store = factory()();
  ASSERT_TRUE(store->set("../../escaped", "x").ok());
  EXPECT_EQ(store->get("../../escaped", in(kPatience)).value(), "x");
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/of/escaped"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_ + "/of/a/job"), std::filesystem::directory_iterator()),
            1)
      << "a temporary file stays behind";
}

TEST_F(FileStore, ValuesAreForTheUsersEyesOnly) {
  ASSERT_TRUE(factory()()->set("secret", "x").ok());
  for (const auto& file : std::filesystem::directory_iterator(directory_ + "/of/a/job"))
    EXPECT_EQ(file.status().permissions(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST_F(FileStore, AFileInPlaceOfTheDirectoryIsNamed) {
  const auto store = make_file_store("/proc/version/store");
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.status().code(), StatusCode::system_error);
  EXPECT_THAT(store.status().message(), HasSubstr("create /proc/version/store"));
}

TEST_F(FileStore, AVanishedDirectoryIsAnErrorOfSet) {
  const auto store = factory()();
  std::filesystem::remove_all(directory_);
  const Status status = store->set("key", "value");
  EXPECT_EQ(status.code(), StatusCode::system_error);
  EXPECT_THAT(status.message(), HasSubstr("No such file or directory"));
}

// --- TCP store

constexpr const char* kHost = "127.0.0.1";

/// A server on a free port and what connects to it.
class TcpStore : public ::testing::Test {
 protected:
  TcpStore() : port_(free_port(kHost).value()) {}

  Result<std::unique_ptr<Store>> make(bool server, const std::string& job = "job", Clock::duration patience = kPatience) const {
    return make_tcp_store(kHost, port_, server, job, in(patience));
  }
  [[nodiscard]] StoreFactory factory() {
    return [this] {
      auto store = make(!std::exchange(served_, true));
      EXPECT_TRUE(store.ok()) << store.status().to_string();
      return store.ok() ? std::move(*store) : nullptr;
    };
  }
  /// A bare connection, as a stranger makes it.
  [[nodiscard]] Descriptor dial() const {
    auto socket = connect_to(kHost, port_, in(kPatience));
    EXPECT_TRUE(socket.ok()) << socket.status().to_string();
    return socket.ok() ? std::move(*socket) : Descriptor();
  }
  static void say(const Descriptor& socket, const std::string& bytes) {
    static_cast<void>(send_all(socket.get(), bytes.data(), bytes.size(), in(milliseconds(200))));
  }
  /// Whether the other side closes this connection, which may first say something.
  static bool is_closed(const Descriptor& socket) {
    char byte = 0;
    Status status;
    while (status.ok()) status = receive_all(socket.get(), &byte, 1, in(kPatience));
    return status.code() != StatusCode::timeout;
  }
  static void expect_service(Store& one, Store& other, const std::string& key) {
    ASSERT_TRUE(one.set(key, "value").ok());
    const auto got = other.get(key, in(kPatience));
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    EXPECT_EQ(*got, "value");
  }

  int port_;
  bool served_ = false;
};

const Key kNoKey = key_from_text("");  // of the tests' environment

std::string number(std::uint32_t value) { return {reinterpret_cast<const char*>(&value), sizeof value}; }
std::string block(const std::string& bytes) { return number(static_cast<std::uint32_t>(bytes.size())) + bytes; }
std::string hello(std::uint32_t version, const std::string& job) { return store_hello(job, Nonce{}, version); }

/// The client's part of the handshake with `key`; what it proved, or nothing where the server said no.
std::optional<std::string> enter(const Descriptor& socket, const std::string& job, const Key& key, bool prove_it = true) {
  const Nonce mine{};
  const std::string words = store_hello(job, mine);
  const std::string expected = '\x03' + block(job);
  std::string answer(expected.size(), '\0');
  Nonce theirs;
  Proof proof;
  if (!send_all(socket.get(), words.data(), words.size(), in(kPatience)).ok() ||
      !receive_all(socket.get(), answer.data(), answer.size(), in(kPatience)).ok() || answer != expected ||
      !receive_all(socket.get(), theirs.data(), theirs.size(), in(kPatience)).ok() ||
      !receive_all(socket.get(), proof.data(), proof.size(), in(kPatience)).ok()) {
    return std::nullopt;
  }
  const Proof own = store_client_proof(key, job, mine, theirs);
  if (prove_it && !send_all(socket.get(), own.data(), own.size(), in(kPatience)).ok()) return std::nullopt;
  return words + std::string(as_text(own));
}

TEST_F(TcpStore, IsADictionaryForAllThreads) { expect_a_dictionary_for_all_threads(factory()); }
TEST_F(TcpStore, TimeoutsNameTheKey) { expect_timeouts_that_name_the_key(factory()); }
TEST_F(TcpStore, RanksExchangeAndNameWhoIsMissing) { expect_ranks_to_exchange_and_name_who_is_missing(factory()); }

TEST_F(TcpStore, AClientThatComesFirstWaitsForTheServer) {
  std::unique_ptr<Store> client;
  std::thread early([&] {
    auto made = make(false);
    if (made.ok()) client = std::move(*made);
  });
  std::this_thread::sleep_for(milliseconds(30));  // so that it is refused a few times; the test holds without it as well
  const auto server = make(true);
  early.join();
  ASSERT_TRUE(server.ok()) << server.status().to_string();
  ASSERT_NE(client, nullptr);
  expect_service(**server, *client, "key");
}

TEST_F(TcpStore, HostileClientsAreDroppedWhileRealOnesWork) {
  const auto server = make(true);
  ASSERT_TRUE(server.ok());
  const auto client = make(false);
  ASSERT_TRUE(client.ok());
  const std::uint32_t seed = 20240229;
  std::mt19937 random(seed);
  std::string junk(5000, '\0');
  for (char& byte : junk) byte = static_cast<char>(random());
  const std::string to_drop[] = {
      junk,
      "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
      "SHST" + number(2) + number(0xffffffff),  // a job name of 4 GiB
      "SHST" + number(2) + number(257),
      hello(2, "another job"),
      hello(1, "job"),
      hello(2, "job") + std::string(32, 'p'),  // no proof at all
      hello(2, "job") + std::string(3000, 'p'),
  };
  const std::string to_drop_of_a_member[] = {
      "\x07",                       // no such request
      '\x02' + number(0x80000000),  // a key of 2 GiB
      '\x01' + block("k") + number(0x7fffffff),
      '\x01' + block("k") + number((1 << 20) + 1),
      '\x02' + block("absent") + std::string(3 << 20, 'x'),  // far more than any request while it waits
  };
  std::vector<Descriptor> half_open;
  half_open.push_back(dial());  // says nothing
  say(half_open.emplace_back(dial()), "SHS");
  ASSERT_TRUE(enter(half_open.emplace_back(dial()), "job", kNoKey, false));
  ASSERT_TRUE(enter(half_open.emplace_back(dial()), "job", kNoKey));
  say(half_open.back(), '\x01' + number(4096) + "half a key");
  const auto before = refusals().count;
  int k = 0;
  for (const bool member : {false, true}) {
    for (const std::string& bytes : member ? std::span<const std::string>(to_drop_of_a_member) : to_drop) {
      const Descriptor stranger = dial();
      if (member) {
        ASSERT_TRUE(enter(stranger, "job", kNoKey));
      }
      std::thread talker([&] { say(stranger, bytes); });
      expect_service(**server, **client, "key" + std::to_string(k++));
      talker.join();
      EXPECT_TRUE(is_closed(stranger)) << "hostile input " << k << " keeps its connection (seed " << seed << ")";
    }
  }
  EXPECT_EQ(refusals().count - before, std::size(to_drop));
  for (int i = 0; i < 200; ++i) static_cast<void>(dial());  // a port scan
  const auto late = make(false);
  ASSERT_TRUE(late.ok()) << late.status().to_string();
  expect_service(**client, **late, "late");
}

TEST_F(TcpStore, ARequestInSmallPiecesIsPutTogether) {
  const auto server = make(true);
  ASSERT_TRUE(server.ok());
  const Descriptor socket = dial();
  ASSERT_TRUE(enter(socket, "job", kNoKey));
  for (const char byte : '\x01' + block("slow") + block("but right")) say(socket, std::string(1, byte));
  EXPECT_EQ((*server)->get("slow", in(kPatience)).value(), "but right");
}

TEST_F(TcpStore, MoreSilentStrangersThanAllowedMakeRoom) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  if (before.rlim_cur < 900) GTEST_SKIP() << "needs 900 file descriptors, " << before.rlim_cur << " are allowed";
  const auto server = make(true);
  ASSERT_TRUE(server.ok());
  std::vector<Descriptor> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(dial());
  const auto client = make(false);
  ASSERT_TRUE(client.ok()) << client.status().to_string();
  expect_service(**server, **client, "key");
  EXPECT_TRUE(is_closed(silent.front()));
}

TEST_F(TcpStore, AServerWithoutDescriptorsGoesOnWithThoseItHasAndNeedsNoCore) {
  const auto server = make(true);
  ASSERT_TRUE(server.ok());
  const auto client = make(false);
  ASSERT_TRUE(client.ok());
  // Up to the limit with connections that the kernel makes; the server can accept none of the last ones.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const Descriptor last(::dup(0));
  std::vector<Descriptor> dialled;
  for (int i = 0; i < 8; ++i) dialled.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(dialled.back().get()) + 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port_));
  ::inet_pton(AF_INET, kHost, &address.sin_addr);
  for (const Descriptor& socket : dialled) {
    static_cast<void>(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address));
  }
  timespec cpu_before{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu_before);
  std::this_thread::sleep_for(milliseconds(300));
  timespec cpu_after{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu_after);
  const double cpu_s = static_cast<double>(cpu_after.tv_sec - cpu_before.tv_sec) +
                       static_cast<double>(cpu_after.tv_nsec - cpu_before.tv_nsec) / 1e9;
  EXPECT_LT(cpu_s, 0.15) << "the server spins";
  expect_service(**server, **client, "key");
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  const auto late = make(false);
  ASSERT_TRUE(late.ok()) << late.status().to_string();
  expect_service(**server, **late, "late");
}

TEST_F(TcpStore, TwoJobsOnOnePortAreKeptApart) {
  const auto first = make(true, "first");
  ASSERT_TRUE(first.ok());
  const auto second_server = make(true, "second");
  ASSERT_FALSE(second_server.ok());
  EXPECT_EQ(second_server.status().code(), StatusCode::system_error);
  EXPECT_THAT(
      second_server.status().message(),
      HasSubstr("rank 0 cannot serve its store: listen on 127.0.0.1:" + std::to_string(port_) + ": Address already in use"));
  const auto second_client = make(false, "second");
  ASSERT_FALSE(second_client.ok());
  EXPECT_EQ(second_client.status().code(), StatusCode::invalid_argument);
  EXPECT_THAT(second_client.status().message(), HasSubstr("serves job 'first', not 'second': two jobs use one port"));
}

TEST_F(TcpStore, AnotherKeyIsRefusedOnBothSides) {
  const auto server = make_tcp_store(kHost, port_, true, "job", key_from_text("the right key"), in(kPatience));
  ASSERT_TRUE(server.ok());
  const auto before = refusals().count;
  const auto client = make_tcp_store(kHost, port_, false, "job", key_from_text("a wrong key"), in(kPatience));
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.status().code(), StatusCode::mismatch);
  EXPECT_THAT(client.status().message(),
              HasSubstr("does not hold this job's key; start all ranks with the same SHOAL_JOB_KEY"));
  // One that does not look at the server's proof gets no further.
  const Descriptor socket = dial();
  ASSERT_TRUE(enter(socket, "job", key_from_text("a wrong key")));
  say(socket, '\x01' + block("key") + block("smuggled"));
  EXPECT_TRUE(is_closed(socket));
  EXPECT_EQ((*server)->get("key", in(milliseconds(20))).status().code(), StatusCode::timeout);
  EXPECT_EQ(refusals().count - before, 2U);
  EXPECT_EQ(refusals().last, "store: it does not hold the job's key");
}

TEST_F(TcpStore, ARecordedHandshakeOpensNothing) {
  const auto server = make(true);
  ASSERT_TRUE(server.ok());
  const auto recorded = enter(dial(), "job", kNoKey);
  ASSERT_TRUE(recorded);
  for (int i = 0; i < 20; ++i) {
    const Descriptor socket = dial();
    say(socket, *recorded + '\x01' + block("key") + block("smuggled"));
    EXPECT_TRUE(is_closed(socket));
  }
  EXPECT_EQ((*server)->get("key", in(milliseconds(20))).status().code(), StatusCode::timeout);
}

TEST_F(TcpStore, WhatIsNoStoreIsSaidToBeNone) {
  const auto listener = listen_on(kHost, port_);
  ASSERT_TRUE(listener.ok()) << listener.status().to_string();
  const auto client = make(false, "job", milliseconds(100));  // it connects, and nobody answers
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.status().code(), StatusCode::timeout);
  EXPECT_THAT(client.status().message(), HasSubstr("127.0.0.1:" + std::to_string(port_) + " does not answer as one"));
}

TEST_F(TcpStore, NobodyThereIsATimeoutWithTheAddress) {
  const auto client = make(false, "job", milliseconds(60));
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.status().code(), StatusCode::timeout);
  EXPECT_EQ(client.status().message(),
            "rank 0's store cannot be reached: connect to 127.0.0.1:" + std::to_string(port_) + ": Connection refused");
}

TEST_F(TcpStore, AServerThatIsGoneFailsEveryCallAtOnce) {
  auto server = make(true);
  ASSERT_TRUE(server.ok());
  const auto client = make(false);
  ASSERT_TRUE(client.ok());
  Result<std::string> waiting = Status(StatusCode::internal, "not set");
  std::thread waiter([&] { waiting = (*client)->get("never", in(kPatience)); });
  std::this_thread::sleep_for(milliseconds(20));
  server->reset();
  waiter.join();
  ASSERT_FALSE(waiting.ok());
  EXPECT_NE(waiting.status().code(), StatusCode::timeout);
  EXPECT_THAT(waiting.status().message(), HasSubstr("key 'never'"));
  const auto start = Clock::now();
  EXPECT_FALSE((*client)->set("key", "value").ok());
  EXPECT_FALSE((*client)->get("key", in(kPatience)).ok());
  EXPECT_LT(Clock::now() - start, kPatience / 2);
}

TEST_F(TcpStore, BadArgumentsAreRefusedBeforeAnythingIsSent) {
  for (const int port : {0, -1, 65536}) {
    const auto store = make_tcp_store(kHost, port, false, "job", in(kPatience));
    ASSERT_FALSE(store.ok());
    EXPECT_EQ(store.status().message(), "store: " + std::to_string(port) + " is not a port");
  }
  EXPECT_FALSE(make(true, std::string(257, 'j')).ok());
  const auto server = make(true);
  ASSERT_TRUE(server.ok());
  const std::string largest(1 << 20, 'v');
  EXPECT_EQ((*server)->set("key", largest + 'v').code(), StatusCode::invalid_argument);
  EXPECT_EQ((*server)->set(std::string(4097, 'k'), "v").code(), StatusCode::invalid_argument);
  EXPECT_EQ((*server)->get(std::string(4097, 'k'), in(kPatience)).status().code(), StatusCode::invalid_argument);
  ASSERT_TRUE((*server)->set("key", largest).ok());
  EXPECT_EQ((*server)->get("key", in(kPatience)).value(), largest);
}

TEST_F(TcpStore, ANameThatNobodyKnowsIsNamed) {
  const auto store = make_tcp_store("no-such-host.invalid", port_, false, "job", in(milliseconds(50)));
  ASSERT_FALSE(store.ok());
  EXPECT_THAT(store.status().message(), HasSubstr("no-such-host.invalid"));
}

}  // namespace
}  // namespace shoal
