// The bits of a sum do not depend on timing, sockets and transport; with SHOAL_NUMERICS=strict they do not depend on the
// placement of the ranks either.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tests/mentions.h"
#include "tests/multiprocess/ranks.h"
#include "tests/multiprocess/shared_buffer.h"

namespace shoal {
namespace {

constexpr int kRanks = 6;
constexpr int kRoot = 2;

/// How a job runs.
struct JobSetup {
  std::string title = {};
  std::string transports = "shm";
  std::string algorithm = {};
  std::vector<int> host_of_rank = {};  ///< numbers for host names; empty: one host
  std::map<std::string, std::string> environment = {};
  bool jitter = false;  ///< a random delay before every call of each rank
  bool shared = false;  ///< buffers from mem_alloc
};

/// Random bits for element `index`. Source: Vigna's splitmix64.
std::uint64_t random_bits(std::uint64_t seed, std::size_t index) {
  std::uint64_t bits = seed * 0xd1342543de82ef95ULL + (index + 1) * 0x9e3779b97f4a7c15ULL;
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9ULL;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111ebULL;
  return bits ^ bits >> 31;
}

/// The input of `rank`: values of a wide range, so that another order of additions gives other bits. Any float of 16 .. 64
/// bits.
std::vector<std::byte> contribution(int rank, std::size_t count, DataType type, std::uint64_t seed) {
  constexpr std::array<double, 16> kScales{1. / 64, 1. / 32, 1. / 16, 1. / 8, 1. / 4, 1. / 2,   1, 2,
                                           4,       8,       16,      32,     64,     1. / 128, 1, 2};
  std::vector<std::byte> bytes(count * size_of(type));
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bits = random_bits(seed * 1000 + static_cast<std::uint64_t>(rank), i);
    const double value = (static_cast<double>(bits >> 12) * (1.0 / static_cast<double>(1ULL << 52)) - 0.5) * kScales[bits % 16];
    const auto put = [&](auto number) { std::memcpy(bytes.data() + i * sizeof number, &number, sizeof number); };
    switch (type) {
      case DataType::float64:
        put(value);
        break;
      case DataType::float32:
        put(static_cast<float>(value));
        break;
      case DataType::bfloat16:  // the upper half of a float32
        put(static_cast<std::uint16_t>((bits >> 20 & 0x807F) | (121 + bits % 10) << 7));
        break;
      default:  // float16
        put(static_cast<std::uint16_t>((bits >> 20 & 0x83FF) | (11 + bits % 8) << 10));
    }
  }
  return bytes;
}

/// Continues `hash` with `bytes` bytes, eight at a time.
std::uint64_t hash_of(std::uint64_t hash, const void* data, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += sizeof hash) {
    std::uint64_t block = 0;
    std::memcpy(&block, static_cast<const unsigned char*>(data) + i, std::min(bytes - i, sizeof block));
    hash = (hash ^ block) * 1099511628211ULL;
    hash ^= hash >> 29;
  }
  return hash;
}

/// The sum that SHOAL_NUMERICS=strict promises: in rank order; for a reduce the root (`last`) comes last.
std::vector<float> in_rank_order(std::size_t count, std::uint64_t seed, int last) {
  std::vector<float> sum;
  for (int i = 0; i < kRanks + 1; ++i) {
    const int rank = i == kRanks ? last : i;
    if (rank < 0 || (i < kRanks && rank == last)) continue;
    const auto bytes = contribution(rank, count, DataType::float32, seed);
    std::vector<float> values(count);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    if (sum.empty()) {
      sum = values;
    } else {
      for (std::size_t k = 0; k < count; ++k) sum[k] += values[k];
    }
  }
  return sum;
}

/// Makes calls of all kinds that reduce. Returns "bits: ..." with a hash of all results of this rank, or what is wrong.
std::string run_calls(Communicator& c, const JobSetup& how, bool in_order) {
  std::mt19937_64 random(static_cast<std::uint64_t>(::getpid()));
  std::uint64_t hash = 14695981039346656037ULL;
  std::uint64_t seed = 0;
  CallOptions options;
  if (!how.algorithm.empty()) options.algorithm = how.algorithm.c_str();
  for (const DataType type : {DataType::float32, DataType::float64, DataType::float16, DataType::bfloat16}) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
      if (op == ReduceOp::avg && type != DataType::float32) continue;
      for (const std::size_t count : {1UL, 40UL, 3000UL, 20000UL, 120000UL}) {
        if (count > 20000 && type != DataType::float32) continue;  // larger tiles over the network
        const std::size_t bytes = count * kRanks * size_of(type);  // room for every call
        const testing::TestBuffer<unsigned char> input(bytes, how.shared);
        const testing::TestBuffer<unsigned char> output(bytes, how.shared);
        const auto call = [&](std::size_t elements, const char* what, auto&& make, std::size_t results,
                              int last) -> std::string {
          const auto mine = contribution(c.rank(), elements, type, ++seed);
          std::memcpy(input.data(), mine.data(), mine.size());
          if (how.jitter) ::usleep(static_cast<useconds_t>(random() % 700));
          if (const Status status = make(); !status.ok()) return status.to_string();
          hash = hash_of(hash, output.data(), results * size_of(type));
          if (!in_order || type != DataType::float32 || op != ReduceOp::sum || results == 0) return {};
          const auto right = in_rank_order(elements, seed, last);
          const std::size_t first = results < elements ? static_cast<std::size_t>(c.rank()) * results : 0;
          if (std::memcmp(output.data(), right.data() + first, results * sizeof(float)) == 0) return {};
          return fmt::format("{} of {} elements is not folded in rank order", what, elements);
        };
        std::string wrong = call(
            count, "all_reduce", [&] { return c.all_reduce(input.data(), output.data(), count, type, op, options); }, count,
            -1);
        if (wrong.empty())
          wrong = call(
              count * kRanks, "reduce_scatter",
              [&] { return c.reduce_scatter(input.data(), output.data(), count, type, op, options); }, count, -1);
        if (wrong.empty() && how.algorithm.empty())
          wrong = call(
              count, "reduce", [&] { return c.reduce(input.data(), output.data(), count, type, op, kRoot); },
              c.rank() == kRoot ? count : 0, kRoot);
        if (!wrong.empty()) return wrong;
      }
    }
  }
  return fmt::format("bits: {:016x}", hash);
}

std::string join_lines(const std::vector<testing::RankOutcome>& outcomes) {
  std::string text;
  for (const auto& outcome : outcomes) text += outcome.output + "\n";
  return text;
}

/// The outputs of run_calls() of all ranks, one line each.
std::string bits_of(const JobSetup& how, bool in_order = false) {
  return join_lines(testing::run_ranks(kRanks, [&](int rank, int size, const std::string& directory) -> std::string {
    for (const auto& [name, value] : how.environment) ::setenv(name.c_str(), value.c_str(), 1);
    if (!how.host_of_rank.empty()) {
      if (::unshare(CLONE_NEWUTS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWUTS) != 0) return "no UTS namespaces";
      const std::string name = fmt::format("shoal-test-{}", how.host_of_rank[static_cast<std::size_t>(rank)]);
      if (::sethostname(name.data(), name.size()) != 0) return "no host name";
    }
    CommunicatorOptions options;
    options.transports = how.transports;
    auto communicator = testing::join(directory, rank, size, options);
    if (!communicator.ok()) return communicator.status().to_string();
    return run_calls(**communicator, how, in_order);
  }));
}

TEST(Numerics, BitsDoNotDependOnTimingSocketsTransport) {
  const std::string bits = bits_of({.title = "shm"});
  ASSERT_THAT(bits, ::testing::HasSubstr("bits: "));
  for (JobSetup how :
       {JobSetup{.title = "again, with jitter", .jitter = true}, JobSetup{.title = "buffers from mem_alloc", .shared = true},
        JobSetup{.title = "tcp", .transports = "tcp"}, JobSetup{.title = "tcp, jitter", .transports = "tcp", .jitter = true},
        JobSetup{.title = "tcp, three sockets", .transports = "tcp", .environment = {{"SHOAL_SOCKETS_PER_PEER", "3"}}}}) {
    EXPECT_EQ(bits_of(how), bits) << how.title;
    how.environment["SHOAL_NUMERICS"] = "repeatable";
    EXPECT_EQ(bits_of(how), bits) << how.title << ", without a measurement";
  }
}

/// bits_of() over shm and tcp, as the reference. Computed once for each value of SHOAL_NUMERICS and placement.
const std::string& usual_bits(const std::string& numerics, const std::vector<int>& host_of_rank) {
  static std::map<std::pair<std::string, std::vector<int>>, std::string> known;
  std::string& bits = known[{numerics, host_of_rank}];
  if (bits.empty())
    bits = bits_of({.transports = "shm,tcp", .host_of_rank = host_of_rank, .environment = {{"SHOAL_NUMERICS", numerics}}});
  return bits;
}

class NumericsOver : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, NumericsOver, ::testing::Values("tcp", "ofi", "ucx"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(NumericsOver, BitsDoNotDependOnTransport) {
  const std::string network = GetParam();
  if (network != "tcp") {
    if (const std::string complaint = testing::library_complaint(network); !complaint.empty()) GTEST_SKIP() << complaint;
  }
  // On the loopback device, with several sockets over tcp.
  const std::map<std::string, std::string> environment = {{"SHOAL_HOST_ADDRESS", "127.0.0.1"},
                                                          {"SHOAL_OFI_PROVIDER", "tcp;ofi_rxm"},
                                                          {"SHOAL_SOCKETS_PER_PEER", "4"},
                                                          {"UCX_NET_DEVICES", "lo"},
                                                          {"UCX_TLS", "tcp"}};
  const std::vector<int> one_host;
  const std::vector<int> two_hosts = {0, 0, 0, 1, 1, 1};
  struct Run {
    const char* numerics;
    const std::vector<int>& host_of_rank;
    std::string transports;
  };
  const std::vector<Run> runs{
      {"repeatable", one_host, network}, {"repeatable", two_hosts, "shm," + network}, {"strict", two_hosts, "shm," + network}};
  for (const Run& run : runs) {
    const std::string& usual = usual_bits(run.numerics, run.host_of_rank);
    if (usual.find("namespaces") != std::string::npos) GTEST_SKIP() << "this process may not make UTS namespaces";
    ASSERT_THAT(usual, ::testing::HasSubstr("bits: "));
    JobSetup how{.transports = run.transports, .host_of_rank = run.host_of_rank, .environment = environment, .jitter = true};
    how.environment["SHOAL_NUMERICS"] = run.numerics;
    EXPECT_EQ(bits_of(how), usual) << run.numerics << " over " << run.transports;
  }
}

// By default the class of the network decides which algorithm runs. Without a measurement all runs have the same class. That
// measured bandwidths of one class give the same algorithm is shown by SelectorByClass in tests/unit.
TEST(Numerics, BitsAgreeOnNetworksOfOneClass) {
  const std::vector<int> two_hosts = {0, 0, 0, 1, 1, 1};
  const std::string usual =
      bits_of({.transports = "shm,tcp", .host_of_rank = two_hosts, .environment = {{"SHOAL_PROBE", "0"}}});
  if (usual.find("namespaces") != std::string::npos) GTEST_SKIP() << "this process may not make UTS namespaces";
  ASSERT_THAT(usual, ::testing::HasSubstr("bits: "));
  const std::string bits =
      bits_of({.transports = "shm,tcp",
               .host_of_rank = two_hosts,
               .environment = {{"SHOAL_PROBE", "0"}, {"SHOAL_HOST_ADDRESS", "127.0.0.1"}, {"SHOAL_SOCKETS_PER_PEER", "4"}},
               .jitter = true});
  EXPECT_EQ(bits, usual);
}

TEST(Numerics, AlgorithmGivesSameBitsOverEveryTransport) {
  std::map<std::string, std::string> of_algorithm;
  for (const char* algorithm : {"direct", "ring", "circulant"}) {
    const std::string bits = bits_of({.title = algorithm, .algorithm = algorithm});
    ASSERT_THAT(bits, ::testing::HasSubstr("bits: ")) << algorithm;
    EXPECT_EQ(bits_of({.title = algorithm, .transports = "tcp", .algorithm = algorithm, .jitter = true}), bits) << algorithm;
    of_algorithm[bits] = algorithm;
  }
  EXPECT_EQ(of_algorithm.size(), 3U) << "the bits do not depend on the order of additions, so nothing was tested";
}

TEST(Numerics, StrictBitsDoNotDependOnPlacement) {
  const std::string one_host = bits_of({.title = "one host", .environment = {{"SHOAL_NUMERICS", "strict"}}}, true);
  ASSERT_THAT(one_host, ::testing::HasSubstr("bits: "));
  EXPECT_THAT(one_host, ::testing::Not(::testing::HasSubstr("rank order")));
  for (const std::vector<int>& places :
       {std::vector{0, 0, 0, 1, 1, 1}, std::vector{0, 1, 1, 2, 0, 2}, std::vector{0, 1, 2, 3, 4, 5}}) {
    const std::string bits = bits_of(
        {.title = "hosts", .transports = "", .host_of_rank = places, .environment = {{"SHOAL_NUMERICS", "strict"}}}, true);
    if (bits.find("namespaces") != std::string::npos) GTEST_SKIP() << "this process may not make UTS namespaces";
    EXPECT_EQ(bits, one_host) << ::testing::PrintToString(places);
  }
}

/// Bytes that the TCP sockets of this process have sent.
std::uint64_t bytes_sent() {
  std::uint64_t bytes = 0;
  for (int descriptor = 0; descriptor < 1024; ++descriptor) {
    tcp_info info{};
    socklen_t size = sizeof info;
    if (::getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) == 0) bytes += info.tcpi_bytes_sent;
  }
  return bytes;
}

TEST(Numerics, CompressionKeepsBitsAndSendsFewerBytes) {
  constexpr std::size_t kCount = 1 << 20;
  // The bits of all results, and the bytes that a rank has sent.
  const auto run = [&](const std::string& compression) {
    std::pair<std::string, std::uint64_t> all;
    for (const auto& outcome : testing::run_ranks(2, [&](int rank, int size, const std::string&directory) -> std::string {
           ::setenv("SHOAL_COMPRESSION", compression.c_str(), 1);
           CommunicatorOptions options;
           options.transports = "tcp";
           auto communicator = testing::join(directory, rank, size, options);
           if (!communicator.ok()) return communicator.status().to_string();
           std::mt19937 random(static_cast<unsigned>(rank));
           std::normal_distribution<float> normal(0, 1e-3F);
           std::vector<float> values(kCount);
           for (float& each : values) each = normal(random);
           std::uint64_t hash = 14695981039346656037ULL;
           for (const DataType type : {DataType::float32, DataType::bfloat16}) {
             const Status status = (*communicator)->all_reduce(values.data(), values.data(), kCount, type, ReduceOp::sum);
             if (!status.ok()) return status.to_string();
             hash = hash_of(hash, values.data(), kCount * sizeof(float));
           }
           return fmt::format("{:016x} {}", hash, bytes_sent());
         })) {
      all.first += outcome.output.substr(0, 16) + "\n";
      all.second = outcome.output.size() > 17 ? std::strtoull(outcome.output.c_str() + 17, nullptr, 10) : 0;
    }
    return all;
  };
  const auto [bits, bytes] = run("off");
  const auto [packed_bits, packed_bytes] = run("lossless");
  EXPECT_EQ(packed_bits, bits);
  std::printf("%lu bytes sent, packed %lu\n", static_cast<unsigned long>(bytes), static_cast<unsigned long>(packed_bytes));
  EXPECT_GT(bytes, 3 * kCount * sizeof(float) / 2);
  EXPECT_LT(static_cast<double>(packed_bytes), 0.92 * static_cast<double>(bytes));
}

TEST(Numerics, CompressionRefusesBadValuesAndTransports) {
  EXPECT_THAT(bits_of({.title = "", .environment = {{"SHOAL_COMPRESSION", "zip"}}}),
              testing::Mentions("invalid_argument", "SHOAL_COMPRESSION", "zip", "off", "lossless", "auto"));
  for (const char* network : {"ofi", "shm,ucx"}) {
    EXPECT_THAT(bits_of({.title = "", .transports = network, .environment = {{"SHOAL_COMPRESSION", "lossless"}}}),
                testing::Mentions("unsupported", "SHOAL_COMPRESSION=lossless", "tcp"));
  }
}

TEST(Numerics, StrictRefusesRingAndBadValuesAreRefused) {
  const JobSetup ring{.title = "", .algorithm = "ring", .environment = {{"SHOAL_NUMERICS", "strict"}}};
  EXPECT_THAT(bits_of(ring), testing::Mentions("invalid_argument", "ring", "SHOAL_NUMERICS=strict", "one_shot", "direct"));
  EXPECT_THAT(bits_of({.title = "", .environment = {{"SHOAL_NUMERICS", "measured"}}}), ::testing::HasSubstr("bits: "));
  EXPECT_THAT(bits_of({.title = "", .environment = {{"SHOAL_NUMERICS", "exact"}}}),
              testing::Mentions("invalid_argument", "SHOAL_NUMERICS", "exact", "measured", "repeatable", "strict"));
}

}  // namespace
}  // namespace shoal
