// How real ranks choose algorithms: by rank 0's table, by costs, and what SHOAL_EXPLAIN reports of the choices.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "src/communicator/communicator_impl.h"
#include "src/selector/selector.h"
#include "src/selector/tuning.h"
#include "tests/mentions.h"
#include "tests/multiprocess/ranks.h"

namespace shoal {
namespace {

using ::testing::ContainsRegex;
using testing::Mentions;

class Choice : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / fmt::format("shoal-choice-{}", ::getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string path(const std::string& name) const { return folder_ / name; }

  [[nodiscard]] std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }
  [[nodiscard]] std::string read(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(path(name)).rdbuf();
    return text.str();
  }

  // A table that takes ring for small calls, with a time, neither of which the model would give.
  [[nodiscard]] std::string write_table(const std::string& name, const Topology& topology) const {
    const Algorithm* ring = *find_algorithm("ring");
    const Algorithm* one_shot = *find_algorithm("one_shot");
    const TunedShape tuned{topology.node_of_rank,
                           transports_between(topology),
                           {{CollectiveKind::all_reduce, ring, 4, 7.25, 7, 8, 9},
                            {CollectiveKind::all_reduce, ring, 1024, 7.25, 7, 8, 9},
                            {CollectiveKind::all_reduce, one_shot, 4, 99, 98, 100, 9},
                            {CollectiveKind::all_reduce, one_shot, 1024, 99, 98, 100, 9}}};
    return write(name, tuning_file(nlohmann::ordered_json::array({to_json(tuned)})).dump());
  }

  std::filesystem::path folder_;
};

Status all_reduce(Communicator& c, std::size_t count) {
  std::vector<float> data(count, 1.0F);
  if (Status status = c.all_reduce(data.data(), data.data(), count, DataType::float32, ReduceOp::sum); !status.ok())
    return status;
  for (const float value : data) {
    if (value != static_cast<float>(c.size())) return {StatusCode::internal, fmt::format("{} instead of {}", value, c.size())};
  }
  return {};
}

TEST_F(Choice, AllRanksUseTableOfRank0) {
  const std::string table = write_table("table.json", Topology::uniform(1, 3));
  const std::string other = write("other.json", "this is not even a table");
  testing::expect_all_well(testing::run_ranks(3, [&](int rank, int size, const std::string& directory) -> std::string {
    ::setenv("SHOAL_TUNING", rank == 0 ? table.c_str() : rank == 1 ? other.c_str() : "/no/such/file", 1);
    auto c = testing::join(directory, rank, size, {});
    if (!c.ok()) return c.status().to_string();
    if (Status status = all_reduce(**c, 16); !status.ok()) return status.to_string();
    const CallReport inside = (*c)->last_call();
    if (inside.algorithm != "ring" || inside.predicted_us != 7.25) {
      return fmt::format("{} predicted at {} us for 64 bytes", inside.algorithm, inside.predicted_us);
    }
    // Beyond the sizes of the table the model decides.
    if (Status status = all_reduce(**c, 257); !status.ok()) return status.to_string();
    if ((*c)->last_call().predicted_us == 7.25) return "the table decided outside its sizes";
    // An override wins.
    float one = 1;
    if (Status status = (*c)->all_reduce(&one, &one, 1, DataType::float32, ReduceOp::sum, {{}, "one_shot"}); !status.ok()) {
      return status.to_string();
    }
    return (*c)->last_call().algorithm == "one_shot" ? "" : (*c)->last_call().algorithm;
  }));
}

// The class of the machine decides for sums of floats; with SHOAL_NUMERICS=measured its exact costs decide. Without a probe
// these are the model's, so the sizes at which the two differ are the same in every run.
TEST_F(Choice, NumericsSettingSelectsCosts) {
  for (const char* numerics : {"", "measured"}) {
    testing::expect_all_well(
        testing::run_ranks(4,
                           [&](int rank, int size, const std::string& directory) -> std::string {
                             if (::unshare(CLONE_NEWUTS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWUTS) != 0)
                               return "no UTS namespaces";
                             const std::string name = fmt::format("shoal-test-{}", rank / 2);
                             if (::sethostname(name.data(), name.size()) != 0) return "no host name";
                             ::setenv("SHOAL_NUMERICS", numerics, 1);
                             ::setenv("SHOAL_PROBE", "0", 1);
                             auto c = testing::join(directory, rank, size, {});
                             if (!c.ok()) return c.status().to_string();
                             const Topology& topology = internal::CommunicatorImpl::of(**c).executor().topology();
                             int differ = 0;
                             for (std::size_t count = 16; count <= std::size_t{4} << 20; count += count / 2) {
                               const Collective sum{CollectiveKind::all_reduce, count, DataType::float32, ReduceOp::sum, 0};
                               const auto by_class = select(topology, sum, {}, nullptr, ChoiceCosts::classes);
                               const auto exactly = select(topology, sum, {}, nullptr, ChoiceCosts::exact);
                               if (!by_class.ok() || !exactly.ok()) return "no choice";
                               if (by_class->algorithm == exactly->algorithm) continue;
                               ++differ;
                               if (Status status = all_reduce(**c, count); !status.ok()) return status.to_string();
                               const std::string_view wanted = (*numerics == '\0' ? by_class : exactly)->algorithm->name;
                               if ((*c)->last_call().algorithm != wanted)
                                 return fmt::format("{} elements by {} instead of {}", count, (*c)->last_call().algorithm,
                                                    wanted);
                             }
                             return differ > 0 ? "" : "the costs never differ: choose another topology for this test";
                           }),
        numerics);
  }
}

TEST_F(Choice, TableOfOtherShapeIsIgnored) {
  const std::string table = write_table("table.json", Topology::uniform(1, 4));
  testing::expect_all_well(testing::run_ranks(2, [&](int rank, int size, const std::string& directory) -> std::string {
    ::setenv("SHOAL_TUNING", table.c_str(), 1);
    auto c = testing::join(directory, rank, size, {});
    if (!c.ok()) return c.status().to_string();
    if (Status status = all_reduce(**c, 16); !status.ok()) return status.to_string();
    return (*c)->last_call().predicted_us == 7.25 ? "the table decided" : "";
  }));
}

TEST_F(Choice, BadTableFailsAllRanksWithSameMessage) {
  const std::string table = write_table("table.json", Topology::uniform(1, 2));
  const std::string text = read("table.json");
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    return changed.replace(changed.find(from), from.size(), to);
  };
  struct Case {
    std::string file;
    StatusCode code;  // of rank 0, which reads the table
    std::vector<std::string> facts;
  };
  const std::vector<Case> cases{
      {path("missing.json"), StatusCode::not_found, {"No such file or directory"}},
      {folder_.string(), StatusCode::system_error, {}},
      {write("cut.json", text.substr(0, text.size() - 10)), StatusCode::invalid_argument, {"JSON"}},
      {write("algorithm.json", replaced("\"ring\"", "\"rong\"")), StatusCode::not_found, {"rong"}},
      {write("version.json", replaced(fmt::format("\"{}\"", tuning_version()), "\"9.9.9\"")),
       StatusCode::unsupported,
       {"9.9.9", std::string(tuning_version())}},
  };
  for (const auto& [file, code, facts] : cases) {
    const auto outcomes =
        testing::run_ranks(2, [&, &file = file](int rank, int size, const std::string& directory) -> std::string {
          if (rank == 0) ::setenv("SHOAL_TUNING", file.c_str(), 1);
          auto c = testing::join(directory, rank, size, {});
          return c.ok() ? "started" : c.status().to_string();
        });
    EXPECT_THAT(outcomes[0].output, ::testing::StartsWith(fmt::format("{}: ", to_string(code)))) << file;
    std::vector<std::string> all = facts;
    all.push_back(file);
    for (const auto& outcome : outcomes) EXPECT_THAT(outcome.output, testing::MentionsAll(all));
  }
}

TEST_F(Choice, ReportCountsCallsAndGivesReasons) {
  const std::string table = write_table("table.json", Topology::uniform(1, 2));
  testing::expect_all_well(testing::run_ranks(2, [&](int rank, int size, const std::string& directory) -> std::string {
    ::setenv("SHOAL_TUNING", table.c_str(), 1);
    ::setenv("SHOAL_EXPLAIN", "1", 1);
    const int file = ::open(path(fmt::format("stderr{}", rank)).c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
    if (file < 0 || ::dup2(file, STDERR_FILENO) < 0) return "cannot redirect";
    auto c = testing::join(directory, rank, size, {});
    if (!c.ok()) return c.status().to_string();
    for (int i = 0; i < 5; ++i) {
      if (Status status = all_reduce(**c, 16); !status.ok()) return status.to_string();
    }
    std::vector<float> data(1 << 15, 0.0F);
    for (int i = 0; i < 3; ++i) {
      auto work = (*c)->all_reduce_async(data.data(), data.data(), data.size(), DataType::float32, ReduceOp::max);
      if (!work.ok()) return work.status().to_string();
      if (Status status = work->wait(); !status.ok()) return status.to_string();
    }
    for (int i = 0; i < 2; ++i) {
      Status status = (*c)->all_reduce(data.data(), data.data(), 16, DataType::float32, ReduceOp::max, {{}, "direct"});
      if (!status.ok()) return status.to_string();
    }
    if (Status status = (*c)->broadcast(data.data(), 25, DataType::float32, 1); !status.ok()) return status.to_string();
    return (*c)->barrier().to_string() == "ok" ? "" : "barrier";
  }));
  const std::string report = read("stderr0");
  EXPECT_THAT(report, Mentions("2 ranks", "1x2", "shm"));
  EXPECT_THAT(report, ContainsRegex("all_reduce +64 bytes +ring +5 +7.25 +[0-9.]+ +[0-9.]+ +[^\n]*SHOAL_TUNING[^\n]*\n"));
  EXPECT_THAT(report, ContainsRegex("all_reduce +64 bytes +direct +2 +[0-9.]+ +[0-9.]+ +[0-9.]+ +[^\n]*call\n"));
  EXPECT_THAT(report, ContainsRegex("all_reduce +128 KiB +[a-z_()]+ +3 +[0-9.]+ +[0-9.]+ +[0-9.]+ +model\n"));
  EXPECT_THAT(report, ContainsRegex("broadcast +100 bytes +[a-z_]+ +1 +[0-9.]+ +[0-9.]+ +[0-9.]+ +model\n"));
  EXPECT_THAT(report, ContainsRegex("barrier +- +[a-z_]+ +1 "));
  EXPECT_EQ(read("stderr1"), "");
}

TEST_F(Choice, NoReportByDefault) {
  testing::expect_all_well(testing::run_ranks(2, [&](int rank, int size, const std::string& directory) -> std::string {
    const int file = ::open(path(fmt::format("stderr{}", rank)).c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
    if (file < 0 || ::dup2(file, STDERR_FILENO) < 0) return "cannot redirect";
    auto c = testing::join(directory, rank, size, {});
    return c.ok() ? all_reduce(**c, 16).ok() ? "" : "all_reduce" : c.status().to_string();
  }));
  EXPECT_EQ(read("stderr0"), "");
}

TEST_F(Choice, AllRanksRefuseMalformedExplainSetting) {
  const auto outcomes = testing::run_ranks(2, [&](int rank, int size, const std::string& directory) -> std::string {
    if (rank == 0) ::setenv("SHOAL_EXPLAIN", "yes", 1);
    auto c = testing::join(directory, rank, size, {});
    return c.ok() ? "started" : c.status().to_string();
  });
  for (const auto& outcome : outcomes) EXPECT_THAT(outcome.output, Mentions("invalid_argument", "SHOAL_EXPLAIN", "yes"));
}

}  // namespace
}  // namespace shoal
