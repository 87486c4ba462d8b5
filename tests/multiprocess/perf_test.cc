// shoal_perf as a user runs it: real processes, exit codes, output and result files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/mentions.h"

namespace {

using shoal::testing::Mentions;
using ::testing::HasSubstr;
using ::testing::Not;

struct Outcome {
  int code = -1;
  std::string output;  ///< both streams
};

Outcome run(const std::string& command) {
  Outcome outcome;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> buffer{};
  while (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) outcome.output += buffer.data();
  const int state = pclose(pipe);
  outcome.code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  return outcome;
}

/// Quick settings, because the tests check the reports and not the speed.
const std::string kQuick = " -b 4 -e 64K -f 128 --rounds 2 -n 3 -w 1 ";

Outcome perf(const std::string& arguments) { return run("env -u SHOAL_RANK " SHOAL_PERF_PROGRAM + kQuick + arguments); }
Outcome perf_on(int ranks, const std::string& arguments) {
  return run(SHOAL_PROGRAM " run -n " + std::to_string(ranks) + " -- " SHOAL_PERF_PROGRAM + kQuick + arguments);
}

class ResultFile {
 public:
  ResultFile() : path_(::testing::TempDir() + "perf_" + std::to_string(getpid()) + ".json") {}
  ~ResultFile() { std::filesystem::remove(path_); }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] nlohmann::json read() const { return nlohmann::json::parse(std::ifstream(path_)); }

 private:
  std::string path_;
};

TEST(Perf, OneRankPrintsSummaryOfNcclTests) {
  const Outcome outcome = perf("");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("# Out of bounds values : 0 OK"));
  EXPECT_THAT(outcome.output, HasSubstr("# Avg bus bandwidth"));
}

TEST(Perf, TwoRanksWriteResults) {
  const ResultFile file;
  const Outcome outcome = perf_on(2, "--json " + file.path());
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const nlohmann::json document = file.read();
  EXPECT_TRUE(document["machine"].contains("cpu"));
  EXPECT_THAT(document["command"].get<std::string>(), HasSubstr("--json"));
  ASSERT_EQ(document["results"].size(), 3U);  // 4, 512 and 65536 bytes
  ASSERT_EQ(document["results_in_place"].size(), 3U);
  for (const auto& result : document["results"]) {
    EXPECT_EQ(result["library"], "shoal");
    EXPECT_EQ(result["ranks"], 2);
    EXPECT_EQ(result["nodes"], 1);
    EXPECT_EQ(result["wrong"], 0);
    EXPECT_GT(result["latency_us"], 0);
    EXPECT_LE(result["latency_us_p10"], result["latency_us_p90"]);
    EXPECT_FALSE(result["algorithm"].get<std::string>().empty());
    EXPECT_FALSE(result["transport"].get<std::string>().empty());
    EXPECT_TRUE(result["limit_gbs"].is_null());
  }
}

TEST(Perf, EveryCollectiveTypeAndOperationIsChecked) {
  for (const char* arguments : {"-d all -o all -c 2", "--collective broadcast -r 1 -d int8,double",
                                "--collective all_gather -d half", "-z 0", "--collective barrier"}) {
    const Outcome outcome = perf_on(3, arguments + std::string(" -n 1 --rounds 1"));
    EXPECT_EQ(outcome.code, 0) << arguments << "\n" << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("# Out of bounds values : 0 OK")) << arguments;
  }
}

TEST(Perf, WrongResultsFailAndAreCounted) {
  const ResultFile file;
  const Outcome outcome = perf_on(2, "-b 4K -e 4K -c 1 --peer " SHOAL_WRONG_PEER " --json " + file.path());
  EXPECT_EQ(outcome.code, 1) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("FAILED"));
  EXPECT_THAT(outcome.output, HasSubstr("# wrong time / shoal time"));
  const nlohmann::json results = file.read()["results"];
  ASSERT_EQ(results.size(), 2U);
  EXPECT_EQ(results[0]["library"], "shoal");
  EXPECT_EQ(results[0]["wrong"], 0);
  EXPECT_EQ(results[1]["library"], "wrong");
  EXPECT_EQ(results[1]["algorithm"], "idle");
  EXPECT_EQ(results[1]["wrong"], 2048);  // every element on both ranks
  EXPECT_TRUE(results[0]["time_over_shoal"].is_null());
  EXPECT_GT(results[1]["time_over_shoal"], 0);
}

TEST(Perf, GlooResultsAreRightAtEverySize) {
  const auto peer = std::filesystem::path(SHOAL_PERF_PROGRAM).parent_path().parent_path() / "lib" / "libshoal_peer_gloo.so";
  if (!std::filesystem::exists(peer)) GTEST_SKIP() << "this build has no peer gloo (LibTorch and Gloo's headers make one)";
  // More sizes than tensors that the peer keeps.
  for (const char* kind :
       {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter"}) {
    const Outcome outcome = perf_on(2, std::string("-e 1M -f 4 -n 2 --rounds 2 -w 0 --peer gloo --collective ") + kind);
    EXPECT_EQ(outcome.code, 0) << kind << "\n" << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("gloo ")) << kind;
    EXPECT_THAT(outcome.output, HasSubstr("# Out of bounds values : 0 OK")) << kind;
  }
}

TEST(Perf, UnsupportedTypeOfPeerIsSkipped) {
  const Outcome outcome = perf("-d double --peer " SHOAL_WRONG_PEER);
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("wrong: it has no float64"));
}

TEST(Perf, BandwidthBelowMinimumFails) {
  const Outcome outcome = perf_on(2, "--min-bw 100000");
  EXPECT_EQ(outcome.code, 1) << outcome.output;
  EXPECT_THAT(outcome.output, Mentions("100000 GB/s", "FAILED"));
}

TEST(Perf, BadInputIsRefusedOnceWithStatus2) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"-d float31", "float31"},
      {"-o median", "median"},
      {"--collective all_knit", "all_knit"},
      {"-b 8 -e 4", "-b 8"},
      {"-b -4", "-4"},
      {"-f 1", "-f 1"},
      {"-r 7", "-r 7"},
      {"--algorithm no_such_way", "no_such_way"},
      {"--memory gpu", "gpu"},
      {"--peer no_such_peer", "no_such_peer"},
      {"--json /no/such/folder/x.json", "/no/such/folder/x.json"},
  };
  for (const auto& [arguments, named] : cases) {
    const Outcome outcome = perf_on(2, arguments);
    EXPECT_EQ(outcome.code, 2) << arguments << "\n" << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(named)) << arguments;
    const std::string mark = "shoal_perf: ";
    const std::size_t first = outcome.output.find(mark);
    ASSERT_NE(first, std::string::npos) << outcome.output;
    EXPECT_EQ(outcome.output.find(mark, first + 1), std::string::npos) << "printed twice:\n" << outcome.output;
  }
}

TEST(Perf, UnknownTransportIsRefused) {
  const Outcome outcome = perf_on(2, "--transport carrier_pigeon");
  EXPECT_EQ(outcome.code, 2) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("carrier_pigeon"));
  EXPECT_THAT(outcome.output, Not(Mentions("timeout"))) << "rank 0 publishes the reason";
}

TEST(Perf, FileThatIsNoPeerIsRefused) {
  const Outcome outcome = perf("--peer " SHOAL_PERF_PROGRAM);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.output, HasSubstr("--peer"));
}

#ifdef SHOAL_HAS_OPENMPI
TEST(Perf, OpenMpiWithoutMpirunNamesMpirun) {
  const Outcome outcome = perf_on(2, "--peer openmpi");
  EXPECT_EQ(outcome.code, 2) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("mpirun"));
}

TEST(Perf, OpenMpiRunsBesideShoal) {
  const ResultFile file;
  const Outcome outcome = run(SHOAL_MPIEXEC " --allow-run-as-root --oversubscribe -n 2 " SHOAL_PERF_PROGRAM + kQuick +
                              "--peer openmpi --openmpi-algorithms all --json " + file.path());
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const nlohmann::json results = file.read()["results"];
  ASSERT_EQ(results.size(), 6U);
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i]["library"], i % 2 == 0 ? "shoal" : "openmpi");
    EXPECT_EQ(results[i]["wrong"], 0);
  }
  EXPECT_THAT(outcome.output, HasSubstr("# openmpi time / shoal time, in-place"));
}
#endif

}  // namespace
