// Keys and proofs, compared with an independent HMAC; the sources of keys; the configuration that rank 0 publishes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include <shoal/communicator.h>
#include <shoal/store.h>

#include "src/communicator/job_config.h"
#include "src/join/job_key.h"
#include "src/trust/proof.h"
#include "src/trust/refusals.h"
#include "tests/mentions.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;
using testing::Mentions;
using ::testing::Not;

Key counting_key() {
  Key key;
  unsigned char next = 0;
  for (std::byte& byte : key.bytes) byte = std::byte{next++};
  return key;
}

// Expected value: Python's hmac.new(bytes(range(32)), ..., sha256) over the parts, each after its length in 8 bytes.
TEST(Proof, IsAnHmacSha256OfRoleAndParts) {
  EXPECT_EQ(to_hex(Key{prove(counting_key(), "role", {"one", "", "three"})}),
            "9a03f51487d87a8abd27de15933ecf9533e94ac3400aeee853b16ab3cab32441");
}

TEST(Proof, CoversKeyRoleAndPartBoundaries) {
  const Key key = counting_key();
  const Proof proof = prove(key, "role", {"ab", "c"});
  EXPECT_TRUE(same(proof, prove(key, "role", {"ab", "c"})));
  EXPECT_FALSE(same(proof, prove(key, "role", {"a", "bc"})));
  EXPECT_FALSE(same(proof, prove(key, "role", {"abc"})));
  EXPECT_FALSE(same(proof, prove(key, "other", {"ab", "c"})));
  EXPECT_FALSE(same(proof, prove(Key{}, "role", {"ab", "c"})));
}

TEST(Proof, KeysAndNoncesAreUnique) {
  EXPECT_NE(random_key().bytes, random_key().bytes);
  EXPECT_NE(random_nonce(), random_nonce());
  const Key key = counting_key();
  EXPECT_NE(derive_key(key, "one").bytes, derive_key(key, "two").bytes);
  EXPECT_NE(derive_key(key, "one", "salt").bytes, derive_key(key, "one").bytes);
  EXPECT_EQ(key_from_text("a text").bytes, key_from_text("a text").bytes);
}

TEST(Refusals, AreCountedWithTheLastReason) {
  const auto before = refusals().count;
  count_refusal("tcp", "first");
  count_refusal("shm", "second");
  EXPECT_EQ(refusals().count, before + 2);
  EXPECT_EQ(refusals().last, "shm: second");
}

TEST(Refusals, AreCountedPerListener) {
  EXPECT_EQ(to_text(Refusals{}), "");
  EXPECT_THAT(to_text({1, "store: it closed", {{"store", 1}}}), Mentions("1 connection", "store 1", "store: it closed"));
  EXPECT_THAT(to_text({5, "tcp: it closed", {{"tcp", 2}, {"store", 3}}}), Mentions("5", "store 3", "tcp 2", "tcp: it closed"));
  const auto counted = [](const char* listener) {
    const auto all = refusals().by_listener;
    return all.contains(listener) ? all.find(listener)->second : 0;
  };
  const auto tcp = counted("tcp");
  const auto shm = counted("shm");
  count_refusal("tcp", "first");
  count_refusal("tcp", "second");
  EXPECT_EQ(counted("tcp"), tcp + 2);
  EXPECT_EQ(counted("shm"), shm);
}

/// A store for one rank, which never waits.
class SingleRankStore final : public Store {
 public:
  Status set(std::string_view key, std::string_view value) override {
    values_[std::string(key)] = value;
    return {};
  }
  Result<std::string> get(std::string_view key, std::chrono::steady_clock::time_point /*deadline*/) override {
    return values_[std::string(key)];
  }

 private:
  std::map<std::string, std::string> values_;
};

TEST(Refusals, AppearInReportOfRankZero) {
  count_refusal("tcp", "it belongs to another job");
  for (const bool explain : {true, false}) {
    ::setenv("SHOAL_EXPLAIN", explain ? "1" : "0", 1);
    SingleRankStore store;
    ::testing::internal::CaptureStderr();
    auto communicator = Communicator::create(store, 0, 1);
    const Status status = communicator.ok() ? Status() : communicator.status();
    if (communicator.ok()) communicator->reset();
    const std::string report = ::testing::internal::GetCapturedStderr();
    EXPECT_TRUE(status.ok()) << status.to_string();
    const std::string line = "  " + to_text(refusals()) + "\n";
    EXPECT_EQ(report.ends_with(line), explain) << report;
    EXPECT_EQ(report.empty(), !explain) << report;
  }
  ::unsetenv("SHOAL_EXPLAIN");
}

class JobKeySource : public ::testing::Test {
 protected:
  JobKeySource() {
    char pattern[] = "/tmp/shoal-test-XXXXXX";
    directory_ = ::mkdtemp(pattern);
    path_ = directory_ + "/key";
  }
  ~JobKeySource() override {
    ::unsetenv("SHOAL_JOB_KEY");
    ::unsetenv("SHOAL_JOB_KEY_FILE");
    std::filesystem::remove_all(directory_);
  }
  void write_file(const std::string& text, mode_t mode) const {
    std::ofstream(path_) << text;
    ASSERT_EQ(::chmod(path_.c_str(), mode), 0);
    ::setenv("SHOAL_JOB_KEY_FILE", path_.c_str(), 1);
  }
  static std::string key_error() {
    const auto key = job_key();
    return key.ok() ? "" : key.status().to_string();
  }
  std::string directory_;
  std::string path_;
};

TEST_F(JobKeySource, DefaultKeyIsPublicAndFixed) {
  const auto key = job_key();
  ASSERT_TRUE(key.ok());
  EXPECT_FALSE(key->secret);
  EXPECT_EQ(key->key.bytes, job_key()->key.bytes);
}

TEST_F(JobKeySource, LauncherKeyAppliesWithoutUserKey) {
  const JobKey none = job_key().value();
  remember_job_key({key_from_text("made by rank 0 under mpirun"), true, true});
  EXPECT_EQ(job_key()->key.bytes, key_from_text("made by rank 0 under mpirun").bytes);
  EXPECT_TRUE(job_key()->secret && job_key()->told);
  EXPECT_EQ(given_job_key()->key.bytes, none.key.bytes);
  ::setenv("SHOAL_JOB_KEY", "the key that the user has given", 1);
  EXPECT_EQ(job_key()->key.bytes, key_from_text("the key that the user has given").bytes);
  EXPECT_FALSE(job_key()->told);
  remember_job_key(none);
}

TEST_F(JobKeySource, VariableAndFileGiveTheSameKey) {
  const std::string text = "0123456789abcdef0123456789abcdef";
  ::setenv("SHOAL_JOB_KEY", text.c_str(), 1);
  const auto by_variable = job_key();
  ASSERT_TRUE(by_variable.ok());
  EXPECT_TRUE(by_variable->secret);
  ::unsetenv("SHOAL_JOB_KEY");
  write_file(text + "\n", 0600);
  const auto by_file = job_key();
  ASSERT_TRUE(by_file.ok()) << by_file.status().to_string();
  EXPECT_TRUE(by_file->secret);
  EXPECT_EQ(by_file->key.bytes, by_variable->key.bytes);
}

TEST_F(JobKeySource, BadKeyIsRefusedAndNotPrinted) {
  ::setenv("SHOAL_JOB_KEY", "tooshort", 1);
  EXPECT_THAT(key_error(), Mentions("invalid_argument", "SHOAL_JOB_KEY", "8"));
  EXPECT_THAT(key_error(), Not(HasSubstr("tooshort")));
  ::setenv("SHOAL_JOB_KEY", "0123456789abcdef", 1);
  write_file("0123456789abcdef", 0600);
  EXPECT_THAT(key_error(), Mentions("invalid_argument", "SHOAL_JOB_KEY", "SHOAL_JOB_KEY_FILE"));
  ::unsetenv("SHOAL_JOB_KEY");
  write_file("0123456789abcdef", 0604);
  EXPECT_THAT(key_error(), HasSubstr("chmod o-rwx"));
  write_file("short", 0600);
  EXPECT_THAT(key_error(), Mentions("SHOAL_JOB_KEY_FILE", "5"));
  write_file(std::string(5000, 'x'), 0600);
  EXPECT_THAT(key_error(), Mentions("SHOAL_JOB_KEY_FILE", "16", "4096"));
  for (const char* path : {"/no/such/file", "/proc/self"}) {
    ::setenv("SHOAL_JOB_KEY_FILE", path, 1);
    EXPECT_THAT(key_error(), HasSubstr(path));
  }
  ASSERT_EQ(::mkfifo((directory_ + "/pipe").c_str(), 0600), 0);
  ::setenv("SHOAL_JOB_KEY_FILE", (directory_ + "/pipe").c_str(), 1);
  EXPECT_THAT(key_error(), Mentions("invalid_argument", "SHOAL_JOB_KEY_FILE", directory_ + "/pipe"));
}

JobConfig sample_config() {
  JobConfig config;
  config.job_id = ~std::uint64_t{0};
  config.algorithm = "ring";
  config.use_shm = false;
  config.network = Network::ofi;
  config.tile_bytes = 128 << 10;
  config.network_tile_bytes = 512 << 10;
  config.link_memory_bytes = 5 << 20;
  config.sockets_per_peer = 3;
  config.integrity = Integrity::measured;
  config.compression = Compression::lossless;
  config.encryption = true;
  config.tuned = true;
  config.salt = "salt";
  return config;
}

TEST(JobConfig, SurvivesTheRoundTrip) {
  const Key key = counting_key();
  const auto read = parse_job_config(to_text(sample_config(), key), key);
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(to_text(*read, key), to_text(sample_config(), key));
  EXPECT_EQ(read->job_id, ~std::uint64_t{0});
  EXPECT_EQ(read->link_memory_bytes, std::size_t{5} << 20);
  EXPECT_EQ(read->sockets_per_peer, 3);
  EXPECT_EQ(read->network, Network::ofi);
  EXPECT_EQ(read->integrity, Integrity::measured);
  EXPECT_EQ(read->compression, Compression::lossless);
  EXPECT_TRUE(read->encryption);
  EXPECT_EQ(read->network_tile_bytes, std::size_t{512} << 10);
  EXPECT_EQ(link_key(key, *read).bytes, link_key(key, sample_config()).bytes);
}

TEST(JobConfig, DetectsAnotherKeyWithoutRevealingIt) {
  const Key key = counting_key();
  const std::string text = to_text(sample_config(), key);
  EXPECT_THAT(text, Not(HasSubstr(to_hex(key))));
  EXPECT_THAT(text, Not(HasSubstr(to_hex(link_key(key, sample_config())))));
  const auto read = parse_job_config(text, key_from_text("another"));
  EXPECT_EQ(read.status().code(), StatusCode::mismatch);
  EXPECT_THAT(read.status().message(), Mentions("rank 0", "SHOAL_JOB_KEY", "SHOAL_JOB_KEY_FILE"));
}

TEST(JobConfig, EveryFieldIsChecked) {
  const Key key = counting_key();
  const auto good = nlohmann::json::parse(to_text(sample_config(), key));
  for (const auto& [name, value] : good.items()) {
    for (const nlohmann::json& wrong : {nlohmann::json("text"), nlohmann::json(-1), nlohmann::json(1e300), nlohmann::json(),
                                        nlohmann::json::array(), nlohmann::json(std::string(10000, 'x'))}) {
      if (name == "algorithm" && wrong == "text") continue;  // whether the algorithm exists is checked elsewhere
      auto bad = good;
      bad[name] = wrong;
      EXPECT_FALSE(parse_job_config(bad.dump(), key).ok()) << name << " = " << wrong.dump().substr(0, 40);
    }
    auto without = good;
    without.erase(name);
    EXPECT_EQ(parse_job_config(without.dump(), key).status().code(), StatusCode::internal) << name;
  }
  for (const char* text : {"", "{", "[]", "7", "null", "{}"})
    EXPECT_EQ(parse_job_config(text, key).status().code(), StatusCode::internal) << text;
}

TEST(Costs, RoundTripAndRefuseMalformedText) {
  Topology topology = Topology::uniform(2, 2);
  topology.cost[2] = {31, 0.25, 7, 0.125};
  topology.reduce_us_per_byte = 0.5;
  topology.cores_per_node = 3;
  Topology read = Topology::uniform(2, 2);
  ASSERT_TRUE(read_costs(costs_text(topology), read).ok());
  EXPECT_EQ(costs_text(read), costs_text(topology));
  for (const char* text : {"", "{}", "[]", R"({"reduce":1,"cores":2,"links":[[1,2,3,4],[1,2,3,4]]})",
                           R"({"reduce":1,"cores":2,"links":[[1,2,3,4],[1,2,3,4],[1,2,3]]})",
                           R"({"reduce":1,"cores":2,"links":[[1,2,3,4],[1,2,3,4],[1,-2,3,4]]})",
                           R"({"reduce":1,"cores":2,"links":[[1,2,3,4],[1,2,3,4],[1,"2",3,4]]})",
                           R"({"reduce":null,"cores":2,"links":[[1,2,3,4],[1,2,3,4],[1,2,3,4]]})"}) {
    EXPECT_EQ(read_costs(text, read).code(), StatusCode::internal) << text;
    EXPECT_EQ(costs_text(read), costs_text(topology)) << text;
  }
}

}  // namespace
}  // namespace shoal
