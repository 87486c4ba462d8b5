// How ranks find each other: what launchers say, the file store, the TCP store and those who disturb it.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
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
using ::testing::Not;
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
      Exchange exchange(*stores[static_cast<std::size_t>(r)], r, kRanks, in(kPatience));
      const auto all = exchange.step("name", std::string(1, static_cast<char>('a' + r)));
      std::string& text = seen[static_cast<std::size_t>(r)];
      if (!all.ok()) text = all.status().to_string();
      for (int i = 0; all.ok() && i < kRanks; ++i) text += (*all)[static_cast<std::size_t>(i)];
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : seen) EXPECT_EQ(text, "abcde");
  const std::unique_ptr<Store> fresh = make();
  Exchange alone(*fresh, 0, kRanks + 1, in(milliseconds(20)));
  const auto missing = alone.step("second", "x");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), StatusCode::timeout);
  EXPECT_THAT(missing.status().message(), HasSubstr("start-up (second): rank 5 of 6 has not come"));
}

// Rank 1 gives up after the first step, in which rank 2 is late: both others hear why, and rank 0, which serves, waits for
// them.
void expect_ranks_that_give_up_to_be_heard(const StoreFactory& make) {
  std::vector<std::unique_ptr<Store>> stores;
  for (int r = 0; r < 3; ++r) stores.push_back(make());
  std::vector<std::string> seen(3);
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      Exchange exchange(*stores[static_cast<std::size_t>(r)], r, 3, in(kPatience));
      if (r == 2) std::this_thread::sleep_for(milliseconds(20));
      Status status = exchange.step("first", "x").status();
      if (r == 1 && status.ok()) {
        status = {StatusCode::system_error, "no memory\x1b[31m for a mapping"};
      } else if (status.ok()) {
        status = exchange.step("second", "y").status();
      }
      seen[static_cast<std::size_t>(r)] = exchange.give_up(status).to_string();
      exchange.leave();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int r : {0, 2})
    EXPECT_EQ(seen[static_cast<std::size_t>(r)], "system_error: rank 1 has given up: no memory?[31m for a mapping");
}

// Rank 1 sees rank 2 die and gives up. Rank 0 only sees that rank 1 is gone, and reports what rank 1 has told.
void expect_who_loses_a_rank_to_report_what_that_one_has_lost(const StoreFactory& make) {
  const auto exchange_of = [&](Store& store, int rank) { return Exchange(store, rank, 3, in(kPatience)); };
  const Status first(StatusCode::peer_failed, "rank 2 went away");
  const Status second(StatusCode::peer_failed, "rank 1 went away");
  const std::unique_ptr<Store> store = make();
  EXPECT_EQ(exchange_of(*store, 1).give_up(first).message(), first.message());
  EXPECT_EQ(exchange_of(*store, 0).give_up(second).message(), "rank 1 has given up: rank 2 went away");
  const Status own(StatusCode::system_error, "no memory");  // who knows better is not told otherwise
  EXPECT_EQ(exchange_of(*store, 0).give_up(own).message(), own.message());
  for (const std::string told : {"", "x", "1", "17 ", "1 -"}) {  // nothing to go by
    ASSERT_TRUE(store->set("given up", told).ok());
    const Status reported = exchange_of(*store, 0).give_up(second);
    EXPECT_THAT(reported.message(), ::testing::AnyOf(second.message(), HasSubstr("has given up: "))) << told;
  }
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
TEST_F(FileStore, RanksThatGiveUpAreHeard) { expect_ranks_that_give_up_to_be_heard(factory()); }
TEST_F(FileStore, WhoLosesARankReportsWhatThatOneHasLost) {
  expect_who_loses_a_rank_to_report_what_that_one_has_lost(factory());
}

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

TEST_F(FileStore, AFolderThatOthersMayWriteToIsRefused) {
  for (const mode_t mode : {0770, 0707, 0722}) {
    ASSERT_EQ(::chmod(directory_.c_str(), mode), 0);
    const auto store = make_file_store(directory_ + "/");
    ASSERT_FALSE(store.ok());
    EXPECT_EQ(store.status().code(), StatusCode::invalid_argument);
    EXPECT_THAT(store.status().message(), HasSubstr("may be written to by other users"));
  }
  ASSERT_EQ(::chmod(directory_.c_str(), 0755), 0);
  EXPECT_TRUE(make_file_store(directory_).ok());
  const mode_t before = ::umask(0);
  EXPECT_TRUE(make_file_store(directory_ + "/new").ok()) << "its own folder is refused where the umask is wide";
  ::umask(before);
}

TEST_F(FileStore, AFolderOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make one";
  ASSERT_EQ(::chown(directory_.c_str(), 12345, 12345), 0);
  const auto store = make_file_store(directory_);
  ASSERT_FALSE(store.ok());
  EXPECT_THAT(store.status().message(), HasSubstr(directory_ + " belongs to another user (number 12345)"));
}

TEST_F(FileStore, ALinkInPlaceOfTheFolderIsRefused) {
  ASSERT_EQ(::mkdir((directory_ + "/elsewhere").c_str(), 0700), 0);
  ASSERT_EQ(::symlink("elsewhere", (directory_ + "/store").c_str()), 0);
  for (const char* end : {"", "/"})
    EXPECT_THAT(make_file_store(directory_ + "/store" + end).status().message(), HasSubstr("is no folder"));
}

TEST_F(FileStore, WhatLiesInTheWayIsNeverWrittenTo) {
  const auto store = make_file_store(directory_);
  ASSERT_TRUE(store.ok());
  const std::string victim = directory_ + "/victim";
  std::ofstream(victim) << "as it was";
  const std::string temporary = directory_ + "/tmp-" + std::to_string(::getpid()) + "-key-secret";
  // A link that leads elsewhere, then a file that somebody has open.
  ASSERT_EQ(::symlink(victim.c_str(), temporary.c_str()), 0);
  ASSERT_TRUE((*store)->set("secret", "one").ok());
  const Descriptor open(::open(temporary.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  ASSERT_TRUE(open.valid());
  ASSERT_TRUE((*store)->set("secret", "two").ok());
  char byte = 0;
  EXPECT_EQ(::pread(open.get(), &byte, 1, 0), 0) << "a value was written to a file that was open before";
  EXPECT_EQ((*store)->get("secret", in(kPatience)).value(), "two");
  std::string text;
  std::getline(std::ifstream(victim), text);
  EXPECT_EQ(text, "as it was");
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

/// A client's words and proof, and what seals the rest.
struct Entered {
  std::string said;
  Sealing sealing;

  [[nodiscard]] std::string sealed(const std::string& text) {
    std::string records;
    append_sealed(records, sealing, text);
    return records;
  }
};

/// The client's part of the handshake with `key`; nothing where the server said no.
std::optional<Entered> enter(const Descriptor& socket, const std::string& job, const Key& key, bool prove_it = true) {
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
  return Entered{words + std::string(as_text(own)), store_sealing(key, job, mine, theirs, true)};
}

TEST_F(TcpStore, IsADictionaryForAllThreads) { expect_a_dictionary_for_all_threads(factory()); }
TEST_F(TcpStore, TimeoutsNameTheKey) { expect_timeouts_that_name_the_key(factory()); }
TEST_F(TcpStore, RanksExchangeAndNameWhoIsMissing) { expect_ranks_to_exchange_and_name_who_is_missing(factory()); }
TEST_F(TcpStore, RanksThatGiveUpAreHeard) { expect_ranks_that_give_up_to_be_heard(factory()); }
TEST_F(TcpStore, WhoLosesARankReportsWhatThatOneHasLost) {
  expect_who_loses_a_rank_to_report_what_that_one_has_lost(factory());
}

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
      "SHST" + number(3) + number(0xffffffff),  // a job name of 4 GiB
      "SHST" + number(3) + number(257),
      hello(3, "another job"),
      hello(2, "job"),
      hello(3, "job") + std::string(32, 'p'),  // no proof at all
      hello(3, "job") + std::string(3000, 'p'),
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
  auto half = enter(half_open.emplace_back(dial()), "job", kNoKey);
  ASSERT_TRUE(half);
  say(half_open.back(), half->sealed('\x01' + number(4096) + "half a key"));
  const auto before = refusals().count;
  int k = 0;
  for (const bool member : {false, true}) {
    for (const std::string& bytes : member ? std::span<const std::string>(to_drop_of_a_member) : to_drop) {
      const Descriptor stranger = dial();
      std::string said = bytes;
      if (member) {
        auto entered = enter(stranger, "job", kNoKey);
        ASSERT_TRUE(entered);
        said = entered->sealed(bytes);
      }
      std::thread talker([&] { say(stranger, said); });
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
  auto entered = enter(socket, "job", kNoKey);
  ASSERT_TRUE(entered);
  // Some of it in records of a byte, all of it byte by byte.
  const std::string request = '\x01' + block("slow") + block("but right");
  std::string records;
  for (const char byte : request.substr(0, 8)) records += entered->sealed(std::string(1, byte));
  for (const char byte : records + entered->sealed(request.substr(8))) say(socket, std::string(1, byte));
  EXPECT_EQ((*server)->get("slow", in(kPatience)).value(), "but right");
}

TEST_F(TcpStore, HandshakeAndRequestsInOnePieceAreToldApart) {
  StoreTable table{"job", kNoKey, {}};
  StoreSession session(table);
  const Nonce mine{};
  session.receive(store_hello("job", mine));
  Nonce theirs;
  std::memcpy(theirs.data(), session.unsent.data() + 1 + 4 + 3, theirs.size());
  std::string rest(as_text(store_client_proof(kNoKey, "job", mine, theirs)));
  Sealing sealing = store_sealing(kNoKey, "job", mine, theirs, true);
  append_sealed(rest, sealing, '\x01' + block("key") + block(std::string(100'000, 'v')) + '\x01' + block("next") + block("w"));
  EXPECT_TRUE(session.receive(rest));
  EXPECT_EQ(table.values["key"], std::string(100'000, 'v'));
  EXPECT_EQ(table.values["next"], "w");
  EXPECT_FALSE(session.over());
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
  auto entered = enter(socket, "job", key_from_text("a wrong key"));
  ASSERT_TRUE(entered);
  say(socket, entered->sealed('\x01' + block("key") + block("smuggled")));
  EXPECT_TRUE(is_closed(socket));
  EXPECT_EQ((*server)->get("key", in(milliseconds(20))).status().code(), StatusCode::timeout);
  EXPECT_EQ(refusals().count - before, 2U);
  EXPECT_EQ(refusals().last, "store: it does not hold the job's key");
}

TEST_F(TcpStore, ARecordedHandshakeOpensNothing) {
  const auto server = make(true);
  ASSERT_TRUE(server.ok());
  auto recorded = enter(dial(), "job", kNoKey);
  ASSERT_TRUE(recorded);
  const std::string words = recorded->said + recorded->sealed('\x01' + block("key") + block("smuggled"));
  for (int i = 0; i < 20; ++i) {
    const Descriptor socket = dial();
    say(socket, words);
    EXPECT_TRUE(is_closed(socket));
  }
  EXPECT_EQ((*server)->get("key", in(milliseconds(20))).status().code(), StatusCode::timeout);
}

/// Between a client and the server: hears all, and may change or repeat it.
class Listener {
 public:
  /// What becomes of bytes on the way: `change(to_server, heard_before, bytes)`.
  using Change = std::function<void(bool, const std::string&, std::string&)>;

  Listener(int server_port, Change change)
      : listening_(listen_on(kHost, 0).value()),
        port_(port_of(listening_).value()),
        change_(std::move(change)),
        thread_([=, this] {
          pollfd waiting{listening_.get(), POLLIN, 0};
          if (::poll(&waiting, 1, 60'000) != 1) return;
          const Descriptor client(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
          const Descriptor server = connect_to(kHost, server_port, in(kPatience)).value();
          while (forward(client, server)) {
          }
        }) {}
  ~Listener() { thread_.join(); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  [[nodiscard]] int port() const { return port_; }
  /// What went to the server and what came from it.
  [[nodiscard]] std::string heard(bool to_server) const {
    const std::scoped_lock lock(mutex_);
    return heard_[to_server ? 0 : 1];
  }

 private:
  bool forward(const Descriptor& client, const Descriptor& server) {
    pollfd ready[] = {{client.get(), POLLIN, 0}, {server.get(), POLLIN, 0}};
    if (::poll(ready, 2, 60'000) <= 0) return false;
    for (const bool to_server : {true, false}) {
      if (ready[to_server ? 0 : 1].revents == 0) continue;
      std::string bytes(1 << 16, '\0');
      const ssize_t got = ::recv((to_server ? client : server).get(), bytes.data(), bytes.size(), 0);
      if (got <= 0) return false;
      bytes.resize(static_cast<std::size_t>(got));
      const std::string before = heard(to_server);
      {
        const std::scoped_lock lock(mutex_);
        heard_[to_server ? 0 : 1] += bytes;
      }
      change_(to_server, before, bytes);
      if (!send_all((to_server ? server : client).get(), bytes.data(), bytes.size(), in(kPatience)).ok()) return false;
    }
    return true;
  }

  const Descriptor listening_;
  const int port_;
  const Change change_;
  mutable std::mutex mutex_;
  std::array<std::string, 2> heard_;
  std::thread thread_;  // last: starts when everything else is there
};

// By the first bytes of each direction: hello and proof, challenge.
constexpr std::size_t kToServerHandshake = 4 + 4 + 4 + 3 + 16 + 32;
constexpr std::size_t kFromServerHandshake = 1 + 4 + 3 + 16 + 32;

TEST_F(TcpStore, WhoListensOnTheWaySeesNoKeysAndNoValues) {
  const Key key = key_from_text("the job's key");
  const auto server = make_tcp_store(kHost, port_, true, "job", key, in(kPatience));
  ASSERT_TRUE(server.ok());
  const Listener listener(port_, [](bool, const std::string&, std::string&) {});
  {
    const auto client = make_tcp_store(kHost, listener.port(), false, "job", key, in(kPatience));
    ASSERT_TRUE(client.ok()) << client.status().to_string();
    ASSERT_TRUE((*client)->set("a key of some length", "a value of some length").ok());
    ASSERT_TRUE((*server)->set("another key of some length", "another value of some length").ok());
    EXPECT_EQ((*client)->get("another key of some length", in(kPatience)).value(), "another value of some length");
    EXPECT_EQ((*server)->get("a key of some length", in(kPatience)).value(), "a value of some length");
  }
  EXPECT_THAT(listener.heard(true), HasSubstr("job"));  // it did hear
  for (const bool to_server : {true, false}) {
    EXPECT_GT(listener.heard(to_server).size(), to_server ? kToServerHandshake : kFromServerHandshake);
    EXPECT_THAT(listener.heard(to_server), Not(HasSubstr("key of some")));
    EXPECT_THAT(listener.heard(to_server), Not(HasSubstr("value of some")));
  }
}

TEST_F(TcpStore, AChangedByteEndsTheConnectionAndDeliversNothing) {
  const auto server = make(true);
  ASSERT_TRUE(server.ok());
  ASSERT_TRUE((*server)->set("known", "right").ok());
  // Each byte of a request and of an answer.
  const std::size_t request_bytes = 1 + 4 + 3 + 4 + 5 + Sealing::kOverheadBytes;
  const std::size_t answer_bytes = 4 + 5 + Sealing::kOverheadBytes;
  for (std::size_t i = 0; i < request_bytes + answer_bytes; ++i) {
    const bool request = i < request_bytes;
    const std::size_t at = request ? kToServerHandshake + i : kFromServerHandshake + i - request_bytes;
    const auto before = refusals().count;
    const Listener listener(port_, [&](bool to_server, const std::string& heard, std::string& bytes) {
      if (to_server == request && at >= heard.size() && at - heard.size() < bytes.size()) bytes[at - heard.size()] ^= 1;
    });
    const auto client = make_tcp_store(kHost, listener.port(), false, "job", in(kPatience));
    ASSERT_TRUE(client.ok()) << client.status().to_string();
    // A record that has become longer is waited for in vain.
    const bool longer = (request ? i : i - request_bytes) == 1;
    if (request) {
      if (longer) continue;
      EXPECT_FALSE((*client)->set("key", "value").ok()) << i;
      EXPECT_THAT(refusals().last, HasSubstr("store: a record of it does not open"));
    } else {
      const auto got = (*client)->get("known", in(longer ? milliseconds(100) : milliseconds(60'000)));
      ASSERT_FALSE(got.ok()) << i << ": " << *got;
      if (longer) continue;
      EXPECT_THAT(got.status().message(), HasSubstr("key 'known': what came as its answer is not what it said"));
    }
    EXPECT_EQ(refusals().count, before + 1) << i;
    EXPECT_FALSE((*client)->get("known", in(kPatience)).ok()) << "a connection that was tampered with is used again";
  }
  EXPECT_EQ((*server)->get("key", in(milliseconds(20))).status().code(), StatusCode::timeout);
}

TEST(StoreSealing, NoOtherConnectionHasItsKeys) {
  Nonce other{};
  other[0] = std::byte{1};
  const auto opens = [](Sealing reader) {
    Sealing writer = store_sealing(kNoKey, "job", Nonce{}, Nonce{}, true);
    std::string record;
    append_sealed(record, writer, "text");
    std::memcpy(reader.room().data(), record.data(), record.size());
    reader.arrived(record.size());
    std::array<std::byte, 4> text;
    return reader.waiting_bytes() == text.size() && reader.open(text.data());
  };
  EXPECT_TRUE(opens(store_sealing(kNoKey, "job", Nonce{}, Nonce{}, false)));
  EXPECT_FALSE(opens(store_sealing(key_from_text("another"), "job", Nonce{}, Nonce{}, false)));
  EXPECT_FALSE(opens(store_sealing(kNoKey, "other", Nonce{}, Nonce{}, false)));
  EXPECT_FALSE(opens(store_sealing(kNoKey, "job", other, Nonce{}, false)));
  EXPECT_FALSE(opens(store_sealing(kNoKey, "job", Nonce{}, other, false)));
  EXPECT_FALSE(opens(store_sealing(kNoKey, "job", Nonce{}, Nonce{}, true)));
}

TEST_F(TcpStore, WhatWasRecordedIsNotSaidASecondTime) {
  const auto server = make(true);
  ASSERT_TRUE(server.ok());
  const Descriptor socket = dial();
  auto entered = enter(socket, "job", kNoKey);
  ASSERT_TRUE(entered);
  const auto before = refusals().count;
  const std::string first = entered->sealed('\x01' + block("key") + block("first"));
  const std::string second = entered->sealed('\x01' + block("key") + block("second"));
  say(socket, first + second + first);
  EXPECT_TRUE(is_closed(socket));
  EXPECT_EQ((*server)->get("key", in(kPatience)).value(), "second");
  EXPECT_EQ(refusals().count, before + 1);
  // Nor in the open, where the first bytes are taken for a length, and the rest for a record.
  const Descriptor open = dial();
  ASSERT_TRUE(enter(open, "job", kNoKey));
  say(open, '\x01' + block("key") + block("third") + std::string(1000, '\0'));
  EXPECT_TRUE(is_closed(open));
  EXPECT_EQ((*server)->get("key", in(kPatience)).value(), "second");
  EXPECT_EQ(refusals().count, before + 2);
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
