// Proves that the tests' helpers detect every way in which a rank may end wrongly.
#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/fault/victims.h"
#include "tests/mentions.h"
#include "tests/multiprocess/ranks.h"

namespace shoal {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kOdd = 1;

/// The messages of all expectations that fail in `what`. They do not fail this test.
std::vector<std::string> failures_in(const std::function<void()>& what) {
  ::testing::TestPartResultArray found;
  {
    const ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &found);
    what();
  }
  std::vector<std::string> words;
  for (int i = 0; i < found.size(); ++i) words.emplace_back(found.GetTestPartResult(i).message());
  return words;
}

struct End {
  std::string name;
  std::function<std::string()> body;  ///< of rank kOdd; the other ranks succeed
  std::string words;                  ///< expected in the failure; empty: no failure
  bool to_be_killed = false;
  double seconds = 60;

  friend void PrintTo(const End& end, std::ostream* out) { *out << end.name; }
};

std::string succeeds() { return {}; }
std::string hangs() { return ::pause(), std::string(); }
std::string dies() { return ::raise(SIGKILL), std::string(); }
std::string dies_by_sigterm() { return ::raise(SIGTERM), std::string(); }
std::string exits_as_sanitizer() { ::_exit(66); }
std::string exits_at_once() { ::_exit(0); }
std::string exits_in_order() { std::exit(0); }  // NOLINT(concurrency-mt-unsafe)
std::string complains() { return "the sum is wrong"; }

const std::vector<End> kEnds = {
    {"success", succeeds, ""},
    {"dead", dies, "signal 9"},
    {"dead_by_another_signal", dies_by_sigterm, "signal 15"},
    {"status", exits_as_sanitizer, "status 66"},
    {"no_report", exits_at_once, "body"},
    {"no_report_in_order", exits_in_order, "body"},
    {"complaint", complains, "the sum is wrong"},
    {"hung", hangs, "hung", false, 0.5},
    {"killed", dies, "", true},
    {"killed_by_another_signal", dies_by_sigterm, "signal 15", true},
    {"status_instead_of_killed", exits_as_sanitizer, "status 66", true},
    {"success_instead_of_killed", succeeds, "killed", true},
    {"hung_instead_of_killed", hangs, "hung", true, 0.5},
};

class Ends : public ::testing::TestWithParam<End> {};
INSTANTIATE_TEST_SUITE_P(, Ends, ::testing::ValuesIn(kEnds), [](const auto& info) { return info.param.name; });

TEST_P(Ends, RunRanksDetectsEachWayToEnd) {
  const End& end = GetParam();
  const auto failures = failures_in([&] {
    const auto outcomes = testing::run_ranks(
        3, [&](int rank, int, const std::string&) { return rank == kOdd ? end.body() : std::string(); }, end.seconds);
    end.to_be_killed ? testing::expect_all_well(outcomes, "a note", {kOdd}) : testing::expect_all_well(outcomes, "a note");
  });
  if (end.words.empty()) {
    EXPECT_THAT(failures, IsEmpty());
  } else {
    ASSERT_FALSE(failures.empty());
    EXPECT_THAT(failures.back(), testing::Mentions("a note", "rank 1 of 3", end.words));
    EXPECT_THAT(failures, Each(HasSubstr("rank 1 of 3"))) << "only the rank that ended wrongly is reported";
  }
}

TEST_P(Ends, VictimsDetectEachWayToEnd) {
  const End& end = GetParam();
  testing::Victims job(2, "shm", std::chrono::seconds(60), [&](Communicator& c, testing::Board&) {
    const std::string error = c.rank() == kOdd ? end.body() : "";
    return error.empty() ? Status() : Status(StatusCode::aborted, error);
  });
  const testing::Board& board = job.board();
  // Its time limit begins when the other rank is done.
  for (int look = 0; look < 30'000 && (board.joined < 2 || !board.ranks[0].ended); ++look) ::usleep(1000);
  const std::string wrong = end.to_be_killed ? job.wait(end.seconds, {kOdd}) : job.wait(end.seconds);
  EXPECT_EQ(to_string(board.ranks[0].code), "ok");
  const bool well = wrong.empty() && (end.to_be_killed || board.ranks[kOdd].code == StatusCode::ok);
  EXPECT_EQ(well, end.words.empty()) << wrong << ", " << to_string(board.ranks[kOdd].code);
  EXPECT_THAT(wrong, Not(HasSubstr("rank 0")));
}

}  // namespace
}  // namespace shoal
