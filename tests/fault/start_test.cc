// Failures at start-up: the error of every rank.
#include <gmock/gmock.h>
#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <shoal/store.h>

#include <shoal/shoal.h>

#include "src/join/job_key.h"
#include "tests/mentions.h"
#include "tests/multiprocess/ranks.h"
#include "tests/slack.h"

namespace shoal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Mentions;
using Clock = std::chrono::steady_clock;

CommunicatorOptions over_tcp() {
  CommunicatorOptions options;
  options.transports = "tcp";
  options.timeout = std::chrono::seconds(20);
  return options;
}

/// The Status of a rank at start-up or in its first call, and after how many seconds.
struct Outcome {
  std::string words;
  double seconds = 0;
};
std::vector<Outcome> start_up(const std::function<std::unique_ptr<Store>(int rank, std::unique_ptr<Store>)>& prepare) {
  const auto outcomes = testing::run_ranks(3, [&](int rank, int size, const std::string& directory) -> std::string {
    auto store = make_file_store(directory);
    if (!store.ok()) return store.status().to_string();
    const FairClock clock;
    auto prepared = prepare(rank, std::move(*store));
    CommunicatorOptions options;
    options.transports = "shm,tcp";
    options.timeout = std::chrono::seconds(20);
    const auto made = Communicator::create(*prepared, rank, size, options);
    const Status status = made.ok() ? (*made)->barrier() : made.status();
    return fmt::format("{}|{}", clock.seconds(), status.to_string());
  });
  std::vector<Outcome> ranks;
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(testing::bad_end(outcome), "");
    const std::size_t bar = outcome.output.find('|');
    if (bar == std::string::npos) {
      ADD_FAILURE() << outcome.output;
      ranks.emplace_back();
    } else {
      ranks.push_back({outcome.output.substr(bar + 1), std::stod(outcome.output)});
    }
  }
  return ranks;
}

TEST(StartUp, NoRankWaitsForRankThatAborted) {
  const auto ranks = start_up([](int rank, std::unique_ptr<Store> store) {
    if (rank == 1) ::setenv("SHOAL_LOST_AFTER", "soon", 1);
    return store;
  });
  for (const Outcome& one : ranks) {
    EXPECT_THAT(one.words, Mentions("SHOAL_LOST_AFTER", "soon"));
    EXPECT_LT(one.seconds, 2 * kSlack);  // the deadline is 20 s
  }
  EXPECT_THAT(ranks[0].words, Mentions("rank 1"));
  EXPECT_THAT(ranks[2].words, Mentions("rank 1"));
}

// As long as that of every release: the value is within a text that has its length.
constexpr std::string_view kRelease = "9.9.9";

/// A Store through which rank 0 seems to be of another release.
class OtherRelease final : public Store {
 public:
  explicit OtherRelease(std::unique_ptr<Store> store) : store_(std::move(store)) {}
  Status set(std::string_view key, std::string_view value) override { return store_->set(key, value); }
  Result<std::string> get(std::string_view key, Clock::time_point deadline) override {
    auto value = store_->get(key, deadline);
    constexpr std::string_view kField = "\"version\":\"";
    if (const std::size_t at = value.ok() ? value->find(kField) : std::string::npos; at != std::string::npos)
      value->replace(at + kField.size(), kRelease.size(), kRelease);
    return value;
  }

 private:
  std::unique_ptr<Store> store_;
};

// Encryption with a key that anyone can derive would protect nothing.
TEST(StartUp, AllRanksRefuseEncryptionWithoutSecretKey) {
  const auto start = [](bool has_key) {
    return testing::run_ranks(2, [has_key](int rank, int size, const std::string& directory) -> std::string {
      ::setenv("SHOAL_ENCRYPTION", "on", 1);
      if (has_key) ::setenv("SHOAL_JOB_KEY", "of sixteen letters and more", 1);
      auto made = testing::join(directory, rank, size, over_tcp());
      if (!made.ok()) return made.status().to_string();
      const Status status = (*made)->barrier();
      return status.ok() ? "" : status.to_string();
    });
  };
  testing::expect_all_well(start(true));
  for (const auto& outcome : start(false)) {
    EXPECT_EQ(testing::bad_end(outcome), "");
    EXPECT_THAT(outcome.output,
                AllOf(HasSubstr("invalid_argument: "), HasSubstr("SHOAL_ENCRYPTION=on"), HasSubstr("SHOAL_JOB_KEY_FILE")));
  }
}

/// A Store that a rank needs 3 s to enter.
class SlowToEnter final : public Store {
 public:
  explicit SlowToEnter(std::unique_ptr<Store> store) : store_(std::move(store)) {}
  Status enter(int rank, int size) override {
    std::this_thread::sleep_for(std::chrono::seconds(3));
    return store_->enter(rank, size);
  }
  Status set(std::string_view key, std::string_view value) override { return store_->set(key, value); }
  Result<std::string> get(std::string_view key, Clock::time_point deadline) override { return store_->get(key, deadline); }

 private:
  std::unique_ptr<Store> store_;
};

// Not from the moment when the store is open.
TEST(StartUp, TimeoutCountsFromTheCall) {
  const auto outcomes = testing::run_ranks(2, [](int rank, int size, const std::string& directory) -> std::string {
    if (rank == 1) return "absent";
    auto files = make_file_store(directory);
    if (!files.ok()) return files.status().to_string();
    SlowToEnter store(std::move(*files));
    CommunicatorOptions options = over_tcp();
    options.timeout = std::chrono::seconds(4);
    const FairClock clock;
    const Status status = Communicator::create(store, rank, size, options).status();
    const double seconds = clock.seconds();
    return status.code() == StatusCode::timeout && seconds < 6 ? "timeout"
                                                               : fmt::format("{} s, {}", seconds, status.to_string());
  });
  EXPECT_EQ(outcomes[0].output, "timeout");
}

// mpirun's daemons send the key between hosts in the clear, so it is no secret there.
TEST(StartUp, AllRanksRefuseEncryptionWithMpirunKey) {
  const auto start = [](bool two_hosts) {
    return testing::run_ranks(2, [two_hosts](int rank, int size, const std::string& directory) -> std::string {
      if (::unshare(CLONE_NEWUTS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWUTS) != 0) return "no UTS namespaces";
      const std::string name = fmt::format("shoal-test-{}", two_hosts ? rank : 0);
      if (::sethostname(name.data(), name.size()) != 0) return "no UTS namespaces";
      ::setenv("SHOAL_ENCRYPTION", "on", 1);
      remember_job_key({key_from_text("made by rank 0"), true, true});
      auto made = testing::join(directory, rank, size, over_tcp());
      return made.ok() ? (*made)->barrier().to_string() : made.status().to_string();
    });
  };
  for (const bool two_hosts : {false, true}) {
    for (const auto& outcome : start(two_hosts)) {
      if (outcome.output == "no UTS namespaces") GTEST_SKIP() << "this process may not make UTS namespaces";
      EXPECT_EQ(testing::bad_end(outcome), "");
      if (two_hosts) {
        EXPECT_THAT(outcome.output, AllOf(Mentions("invalid_argument", "SHOAL_ENCRYPTION=on", "mpirun", "SHOAL_JOB_KEY_FILE"),
                                          ::testing::Not(Mentions("shoal run"))))
            << "the key exists, so the advice is another one";
      } else {
        EXPECT_EQ(outcome.output, "ok");
      }
    }
  }
}

TEST(StartUp, AllRanksReportVersionMismatch) {
  const auto ranks = start_up([](int rank, std::unique_ptr<Store> store) -> std::unique_ptr<Store> {
    if (rank != 2) return store;
    return std::make_unique<OtherRelease>(std::move(store));
  });
  const std::string own = fmt::format("{}.{}.{}", SHOAL_VERSION_MAJOR, SHOAL_VERSION_MINOR, SHOAL_VERSION_PATCH);
  ASSERT_EQ(own.size(), kRelease.size());
  for (const Outcome& one : ranks) {
    EXPECT_THAT(one.words, Mentions("mismatch", "rank 0", std::string(kRelease), own));
    EXPECT_LT(one.seconds, 2 * kSlack);
  }
  EXPECT_THAT(ranks[0].words, Mentions("rank 2"));
}

/// A Store that fails for rank 0 when all ranks have their links and its peers need nothing more.
class LostAtTheEnd final : public Store {
 public:
  explicit LostAtTheEnd(std::unique_ptr<Store> store) : store_(std::move(store)) {}
  Status set(std::string_view key, std::string_view value) override { return store_->set(key, value); }
  Result<std::string> get(std::string_view key, Clock::time_point deadline) override {
    if (key.starts_with("left/")) return Status(StatusCode::system_error, "the store is lost");
    return store_->get(key, deadline);
  }

 private:
  std::unique_ptr<Store> store_;
};

TEST(StartUp, JoinedRanksReportRankThatAbortsLast) {
  const auto ranks = start_up([](int rank, std::unique_ptr<Store> store) -> std::unique_ptr<Store> {
    if (rank != 0) return store;
    return std::make_unique<LostAtTheEnd>(std::move(store));
  });
  for (const Outcome& one : ranks) {
    EXPECT_THAT(one.words, AllOf(HasSubstr("system_error"), HasSubstr("the store is lost")));
    EXPECT_LT(one.seconds, 2 * kSlack);
  }
  EXPECT_THAT(ranks[1].words, Mentions("rank 0"));
  EXPECT_THAT(ranks[2].words, Mentions("rank 0"));
}

}  // namespace
}  // namespace shoal
