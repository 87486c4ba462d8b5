// The environment that launchers set.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

#include "src/join/launch.h"
#include "tests/mentions.h"

namespace shoal {
namespace {

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

void expect_refused(const Variables& variables, const std::vector<std::string>& facts) {
  const auto launch = detect(variables);
  ASSERT_FALSE(launch.ok()) << facts.front() << ": taken as rank " << launch->rank << " of " << launch->size << " of "
                            << launch->launcher;
  EXPECT_EQ(launch.status().code(), StatusCode::invalid_argument);
  EXPECT_THAT(launch.status().message(), testing::MentionsAll(facts));
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

TEST(DetectLaunch, AddressMayHaveBracketsAndPort) {
  const auto master_of = [](const std::string& address, const Variables& base) {
    const auto launch = detect(with(base, {{"SHOAL_MASTER_ADDR", address}}));
    return launch.ok() ? launch->master_host + " " + std::to_string(launch->master_port) : launch.status().to_string();
  };
  const Variables without_port = without(kShoalRun, "SHOAL_MASTER_PORT");
  EXPECT_EQ(master_of("[::1]", kShoalRun), "::1 4711");
  EXPECT_EQ(master_of("::1", kShoalRun), "::1 4711");
  EXPECT_EQ(master_of("[::1]:81", without_port), "::1 81");
  EXPECT_EQ(master_of("node01:81", without_port), "node01 81");
  EXPECT_EQ(master_of("10.0.0.1:4711", kShoalRun), "10.0.0.1 4711");
  EXPECT_EQ(master_of("[::1]:81", kSrun), "::1 81");
  expect_refused(with(kShoalRun, {{"SHOAL_MASTER_ADDR", "[::1]:81"}}), {"[::1]:81"});
  expect_refused(with(kTorchrun, {{"MASTER_ADDR", "[::1]:81"}}), {"[::1]:81"});
  for (const char* bad : {"[::1]:x", "[::1]:65536", "node01:0"})
    expect_refused(with(without_port, {{"SHOAL_MASTER_ADDR", bad}}), {"1", "65535"});
  expect_refused(with(without_port, {{"SHOAL_MASTER_ADDR", "[::1]:"}}), {"port"});
  EXPECT_EQ(detect(with(kTorchrun, {{"MASTER_ADDR", "[fd00::3]"}}))->master_host, "fd00::3");
}

TEST(DetectLaunch, OneRankWithoutLauncher) {
  for (const Variables& nothing : {Variables{}, Variables{{"SHOAL_RANK", ""}, {"RANK", ""}, {"WORLD_SIZE", ""}},
                                   Variables{{"SLURM_JOB_ID", "1"}, {"SLURM_PROCID", "0"}}}) {
    const auto launch = detect(nothing);
    ASSERT_TRUE(launch.ok()) << launch.status().to_string();
    EXPECT_EQ(launch->launcher, "none");
    EXPECT_EQ(launch->rank, 0);
    EXPECT_EQ(launch->size, 1);
  }
}

TEST(DetectLaunch, ParsesEachLauncher) {
  const auto expect = [](const Variables& variables, const Launch& wanted) {
    const auto launch = detect(variables);
    ASSERT_TRUE(launch.ok()) << launch.status().to_string();
    EXPECT_EQ(launch->launcher, wanted.launcher);
    EXPECT_EQ(launch->rank, wanted.rank);
    EXPECT_EQ(launch->size, wanted.size);
    EXPECT_EQ(launch->local_rank, wanted.local_rank);
    EXPECT_EQ(launch->local_size, wanted.local_size);
    EXPECT_EQ(launch->master_host, wanted.master_host);
    EXPECT_EQ(launch->master_port, wanted.master_port);
    EXPECT_EQ(launch->job, wanted.job);
  };
  expect(kShoalRun, {"shoal run", 2, 4, 0, 0, "10.0.0.1", 4711, "job"});
  expect(kMpirun, {"mpirun", 3, 8, 0, 0, "", 0, "prterun-1"});
  expect(kTorchrun, {"torchrun", 1, 2, 0, 0, "node0", 29529, "run7"});
  expect(kSrun, {"srun", 5, 6, 0, 0, "gpu07", 20000 + 1234567 % 12768, "1234567.0"});
  // Those that tell which ranks share a host.
  expect(with(kShoalRun, {{"SHOAL_LOCAL_RANK", "0"}, {"SHOAL_LOCAL_SIZE", "2"}}),
         {"shoal run", 2, 4, 0, 2, "10.0.0.1", 4711, "job"});
  expect(with(kMpirun, {{"OMPI_COMM_WORLD_LOCAL_RANK", "3"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}),
         {"mpirun", 3, 8, 3, 4, "", 0, "prterun-1"});
  expect(with(kTorchrun, {{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}}), {"torchrun", 1, 2, 1, 2, "node0", 29529, "run7"});
  // Of an outer job.
  expect(with(kTorchrun, {{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "3"}}), {"torchrun", 1, 2, 0, 0, "node0", 29529, "run7"});
  // The nearest launcher counts: shoal run above mpirun above torchrun above srun.
  expect(with(kSrun, kTorchrun), {"torchrun", 1, 2, 0, 0, "node0", 29529, "run7"});
  expect(with(with(kSrun, kTorchrun), kMpirun), {"mpirun", 3, 8, 0, 0, "", 0, "prterun-1"});
  expect(with(with(with(kSrun, kTorchrun), kMpirun), kShoalRun), {"shoal run", 2, 4, 0, 0, "10.0.0.1", 4711, "job"});
  // One half of torchrun's environment, set by a batch script, does not hide srun.
  expect(with(kSrun, {{"WORLD_SIZE", "6"}}), {"srun", 5, 6, 0, 0, "gpu07", 20000 + 1234567 % 12768, "1234567.0"});
}

TEST(DetectLaunch, StorePortAvoidsEphemeralRange) {
  const auto port_of = [](const Variables& variables) {
    const auto launch = detect(variables);
    return launch.ok() ? launch->master_port : -1;
  };
  int before = 0;
  for (int port = 1; port <= 65506; ++port) {
    const int store = port_of(with(kTorchrun, {{"MASTER_PORT", std::to_string(port)}}));
    ASSERT_TRUE(store >= 30 && store <= 65535 && (store < 32768 || store > 60999)) << port << ": " << store;
    ASSERT_NE(store, before) << "jobs with adjacent launcher ports share a store port";
    before = store;
  }
  for (const int port : {29500, 32738, 60971, 65506}) {
    EXPECT_EQ(port_of(with(kTorchrun, {{"MASTER_PORT", std::to_string(port)}})), port + 29)
        << "outside the ephemeral range the offset is 29";
  }
  for (const int id : {0, 12767, 12768, 1234567, 2147483647}) {
    const int store = port_of(with(kSrun, {{"SLURM_JOB_ID", std::to_string(id)}}));
    EXPECT_TRUE(store >= 20000 && store < 32768) << id << ": " << store;
  }
}

TEST(DetectLaunch, ShoalVariablesOverrideLauncher) {
  for (const Variables& launcher : {kMpirun, kTorchrun, kSrun}) {
    const auto launch =
        detect(with(launcher, {{"SHOAL_MASTER_ADDR", "here"}, {"SHOAL_MASTER_PORT", "81"}, {"SHOAL_JOB_ID", "mine"}}));
    ASSERT_TRUE(launch.ok()) << launch.status().to_string();
    EXPECT_EQ(launch->master_host, "here");
    EXPECT_EQ(launch->master_port, 81);
    EXPECT_EQ(launch->job, "mine");
    expect_refused(with(launcher, {{"SHOAL_MASTER_PORT", "port"}}), {"SHOAL_MASTER_PORT", "port", "1", "65535"});
    const auto unset = detect(with(launcher, {{"SHOAL_MASTER_PORT", ""}}));
    ASSERT_TRUE(unset.ok()) << unset.status().to_string();
    EXPECT_EQ(unset->master_port, detect(launcher)->master_port);
  }
  // With SHOAL_MASTER_PORT, the launcher's port is not needed.
  EXPECT_TRUE(detect(with(without(kTorchrun, "MASTER_PORT"), {{"SHOAL_MASTER_PORT", "81"}})).ok());
  EXPECT_TRUE(detect(with(without(kSrun, "SLURM_JOB_ID"), {{"SHOAL_MASTER_PORT", "81"}})).ok());
}

TEST(DetectLaunch, InvalidValuesAreNamed) {
  const struct {
    const Variables& base;
    const char *rank, *size, *last;
  } launchers[] = {{kShoalRun, "SHOAL_RANK", "SHOAL_SIZE", "3"},
                   {kMpirun, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "7"},
                   {kTorchrun, "RANK", "WORLD_SIZE", "1"},
                   {kSrun, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "5"}};
  for (const auto& [base, rank, size, last] : launchers) {
    for (const char* value : {"-1", "8", "x", "1x", " 1", "1.0", "99999999999"}) {
      expect_refused(with(base, {{rank, value}}), {rank, value, "0", last});
    }
    for (const char* value : {"0", "-4", "many", "65537", "99999999999"}) {
      expect_refused(with(base, {{size, value}}), {size, value, "1", "65536"});
    }
  }
  expect_refused(without(kShoalRun, "SHOAL_SIZE"), {"shoal run", "SHOAL_SIZE"});
  expect_refused(without(kMpirun, "OMPI_COMM_WORLD_SIZE"), {"mpirun", "OMPI_COMM_WORLD_SIZE"});
  expect_refused(without(kTorchrun, "WORLD_SIZE"), {"torchrun", "WORLD_SIZE"});
  expect_refused(without(kTorchrun, "RANK"), {"torchrun", "RANK"});
  expect_refused(without(kTorchrun, "MASTER_PORT"), {"MASTER_PORT"});
  for (const char* port : {"0", "65536", "65510", "http"}) {
    expect_refused(with(kTorchrun, {{"MASTER_PORT", port}}), {"MASTER_PORT", port, "1", "65506"});
  }
  expect_refused(without(kSrun, "SLURM_JOB_ID"), {"SLURM_JOB_ID"});
  expect_refused(with(kSrun, {{"SLURM_JOB_ID", "abc"}}), {"SLURM_JOB_ID", "abc", "0", "2147483647"});
}

TEST(DetectLaunch, SeveralRanksNeedAnAddress) {
  const std::vector<std::string> advice{"rank 0", "SHOAL_MASTER_ADDR", "SHOAL_MASTER_PORT"};
  const auto and_source = [&](const char* source) {
    std::vector<std::string> facts = advice;
    facts.emplace_back(source);
    return facts;
  };
  expect_refused(without(kShoalRun, "SHOAL_MASTER_ADDR"), advice);
  expect_refused(without(kShoalRun, "SHOAL_MASTER_PORT"), advice);
  expect_refused(without(kTorchrun, "MASTER_ADDR"), and_source("MASTER_ADDR"));
  expect_refused(with(kSrun, {{"SLURM_STEP_NODELIST", "gpu[1"}}), and_source("SLURM_STEP_NODELIST"));
  // A single rank needs no address.
  EXPECT_TRUE(detect({{"SHOAL_RANK", "0"}, {"SHOAL_SIZE", "1"}}).ok());
  EXPECT_TRUE(detect({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).ok());
  EXPECT_TRUE(detect({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}}).ok());
}

TEST(FirstSlurmHost, ReadsHostListsAndRefusesMalformedOnes) {
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

}  // namespace
}  // namespace shoal
