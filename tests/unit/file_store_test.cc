// The store in a folder, and unsuitable folders.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include <shoal/store.h>

#include "src/join/socket.h"
#include "tests/unit/stores.h"

namespace {
std::atomic<bool> without_locks{false};
}

// Simulates a file system without locks, such as some network file systems.
extern "C" int flock(int file, int operation) noexcept {
  if (!without_locks.load()) return static_cast<int>(::syscall(SYS_flock, file, operation));
  errno = ENOLCK;
  return -1;
}

namespace shoal {
namespace {

class FileStore : public ::testing::Test {
 protected:
  FileStore() {
    char pattern[] = "/tmp/shoal-test-XXXXXX";
    directory_ = ::mkdtemp(pattern);
  }
  ~FileStore() override { std::filesystem::remove_all(directory_); }

  [[nodiscard]] StoreFactory factory(const std::string& folder = "/of/a/job") const {
    return [this, folder] {
      auto store = make_file_store(directory_ + folder);
      EXPECT_TRUE(store.ok()) << store.status().to_string();
      return store.ok() ? std::move(*store) : nullptr;
    };
  }

  std::string directory_;
};

TEST_F(FileStore, ServesAllThreads) { expect_service_for_all_threads(factory()); }
TEST_F(FileStore, TimeoutsNameTheKey) { expect_timeouts_to_name_the_key(factory()); }
TEST_F(FileStore, RanksExchangeAndNameMissingRank) { expect_exchange_and_missing_rank_to_be_named(factory()); }
TEST_F(FileStore, StepsBringAllValues) { expect_steps_to_bring_all_values(factory()); }
TEST_F(FileStore, AbortReachesAllRanks) { expect_abort_to_reach_all_ranks(factory()); }
TEST_F(FileStore, LossReportsItsRootCause) { expect_loss_to_report_its_root_cause(factory()); }
TEST_F(FileStore, EndedRankIsReportedAtOnce) { expect_ended_rank_to_be_reported_at_once(factory()); }
TEST_F(FileStore, RankThatEndsBetweenStepsIsNamed) { expect_rank_that_ends_between_steps_to_be_named(factory()); }
TEST_F(FileStore, IncompatibleRanksAreNamed) { expect_incompatible_ranks_to_be_named(factory(), factory("/of/another")); }

TEST_F(FileStore, WithoutFileLocksNoRankIsDeclaredDead) {
  without_locks = true;
  expect_exchange_and_missing_rank_to_be_named(factory());
  const auto leaves = factory()();
  const auto stays = factory()();
  EXPECT_EQ(leaves->enter(1, 2).to_string(), "ok");
  EXPECT_EQ(stays->enter(0, 2).to_string(), "ok");
  EXPECT_EQ(stays->look(in(kTimeLimit)).to_string(), "ok");
  EXPECT_EQ(stays->get_from(1, "absent", in(std::chrono::milliseconds(50))).status().code(), StatusCode::timeout);
  leaves->leave();
  stays->leave();
  without_locks = false;
  for (const auto& file : std::filesystem::directory_iterator(directory_ + "/of/a/job"))
    EXPECT_THAT(file.path().filename().string(), Not(AnyOf(HasSubstr("rank-"), HasSubstr("tmp-")))) << "not removed by leave()";
}

TEST_F(FileStore, KeysStayInTheDirectory) {
  const auto store = factory()();
  ASSERT_TRUE(store->set("../../escaped", "x").ok());
  EXPECT_EQ(store->get("../../escaped", in(kTimeLimit)).value(), "x");
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/of/escaped"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_ + "/of/a/job"), std::filesystem::directory_iterator()),
            1)
      << "a temporary file was not removed";
}

TEST_F(FileStore, ValuesAreReadableByOwnerOnly) {
  ASSERT_TRUE(factory()()->set("secret", "x").ok());
  for (const auto& file : std::filesystem::directory_iterator(directory_ + "/of/a/job"))
    EXPECT_EQ(file.status().permissions(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST_F(FileStore, RefusesFolderWritableByOthers) {
  for (const mode_t mode : {0770, 0707, 0722}) {
    ASSERT_EQ(::chmod(directory_.c_str(), mode), 0);
    const auto store = make_file_store(directory_ + "/");
    ASSERT_FALSE(store.ok());
    EXPECT_EQ(store.status().code(), StatusCode::invalid_argument);
    EXPECT_THAT(store.status().message(), Mentions(directory_, "chmod go-w"));
  }
  ASSERT_EQ(::chmod(directory_.c_str(), 0755), 0);
  EXPECT_TRUE(make_file_store(directory_).ok());
  const mode_t before = ::umask(0);
  EXPECT_TRUE(make_file_store(directory_ + "/new").ok()) << "its own folder is refused under a wide umask";
  ::umask(before);
}

TEST_F(FileStore, RefusesFolderOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can change the owner of a folder";
  ASSERT_EQ(::chown(directory_.c_str(), 12345, 12345), 0);
  const auto store = make_file_store(directory_);
  ASSERT_FALSE(store.ok());
  EXPECT_THAT(store.status().message(), Mentions(directory_, "12345"));
}

TEST_F(FileStore, RefusesSymbolicLinkAsFolder) {
  ASSERT_EQ(::mkdir((directory_ + "/elsewhere").c_str(), 0700), 0);
  ASSERT_EQ(::symlink("elsewhere", (directory_ + "/store").c_str()), 0);
  for (const char* end : {"", "/"}) {
    const Status refused = make_file_store(directory_ + "/store" + end).status();
    EXPECT_EQ(refused.code(), StatusCode::invalid_argument);
    EXPECT_THAT(refused.message(), ::testing::AllOf(Mentions(directory_ + "/store"), ::testing::Not(Mentions("chmod"))));
  }
}

TEST_F(FileStore, NeverWritesToExistingTemporaryFile) {
  const auto store = make_file_store(directory_);
  ASSERT_TRUE(store.ok());
  const std::string victim = directory_ + "/victim";
  std::ofstream(victim) << "as it was";
  const std::string temporary = directory_ + "/tmp-" + std::to_string(::getpid()) + "-key-secret";
  // A symbolic link to another file, then a file that another process holds open.
  ASSERT_EQ(::symlink(victim.c_str(), temporary.c_str()), 0);
  ASSERT_TRUE((*store)->set("secret", "one").ok());
  const Descriptor open(::open(temporary.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  ASSERT_TRUE(open.valid());
  ASSERT_TRUE((*store)->set("secret", "two").ok());
  char byte = 0;
  EXPECT_EQ(::pread(open.get(), &byte, 1, 0), 0) << "a value was written to a file that was open before";
  EXPECT_EQ((*store)->get("secret", in(kTimeLimit)).value(), "two");
  std::string text;
  std::getline(std::ifstream(victim), text);
  EXPECT_EQ(text, "as it was");
}

TEST_F(FileStore, NamesFileInPlaceOfDirectory) {
  const auto store = make_file_store("/proc/version/store");
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.status().code(), StatusCode::system_error);
  EXPECT_THAT(store.status().message(), Mentions("/proc/version/store"));
}

TEST_F(FileStore, SetFailsIfDirectoryWasRemoved) {
  const auto store = factory()();
  std::filesystem::remove_all(directory_);
  const Status status = store->set("key", "value");
  EXPECT_EQ(status.code(), StatusCode::system_error);
  EXPECT_THAT(status.message(), HasSubstr("No such file or directory"));
}

}  // namespace
}  // namespace shoal
