// Many operations: collectives of all kinds, messages, groups made and destroyed. Every result is right, and neither memory nor
// descriptors grow.
//
// SHOAL_SOAK_OPERATIONS=n sets their number for longer runs, SHOAL_TEST_SEED=n the seed.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/multiprocess/call_model.h"
#include "tests/multiprocess/ranks.h"

namespace shoal {
namespace {

constexpr int kRanks = 3;
constexpr std::uint64_t kDefaultOperations = 6'000;
constexpr std::uint64_t kOperationsOfAGroup = 40;
constexpr long kMaxGrowthBytes = 4 << 20;

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

long resident_bytes() {
  long total = 0;
  long resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

long descriptors() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::distance(begin(files), end(files));
}

std::string one_call(Communicator& c, std::mt19937_64& random) {
  const testing::ModelCall call = testing::random_call(random, c.size(), random() % 20 == 0 ? 30'000 : 300);
  const testing::ModelBuffers buffers(call, c.rank());
  auto work = testing::make_call(c, call, buffers);
  const Status status = work.ok() ? work->wait() : work.status();
  if (!status.ok()) return fmt::format("{}: {}", call.text(), status.to_string());
  const std::string wrong = buffers.check();
  return wrong.empty() ? "" : fmt::format("WRONG RESULT of {}: {}", call.text(), wrong);
}

/// Sends a message around the ring of ranks.
std::string one_message(Communicator& c, std::mt19937_64& random) {
  const std::size_t count = random() % 3 == 0 ? 20'000 : random() % 200;
  const auto tag = static_cast<int>(random() % 4);
  const int before = (c.rank() + c.size() - 1) % c.size();
  std::vector<std::int32_t> given(count, c.rank() * 7 + tag);
  std::vector<std::int32_t> got(count, -1);
  Communicator::group_begin();
  Status status = c.send(given.data(), count, DataType::int32, (c.rank() + 1) % c.size(), tag);
  if (status.ok()) status = c.recv(got.data(), count, DataType::int32, before, tag);
  const Status end = Communicator::group_end();
  if (!status.ok() || !end.ok()) return (status.ok() ? end : status).to_string();
  return got == std::vector<std::int32_t>(count, before * 7 + tag) ? "" : "WRONG MESSAGE";
}

std::string soak(Communicator& world, std::uint64_t operations, std::uint64_t seed) {
  std::mt19937_64 random(seed);  // the same on every rank
  std::unique_ptr<Communicator> group;
  long memory = 0;
  long open = 0;
  for (std::uint64_t k = 0; k < operations; ++k) {
    if (k % kOperationsOfAGroup == 0) {
      // Replaces the group by one of random ranks in random order.
      std::vector<int> members(kRanks);
      std::iota(members.begin(), members.end(), 0);
      std::shuffle(members.begin(), members.end(), random);
      members.resize(2 + random() % 2);
      group.reset();
      if (std::ranges::find(members, world.rank()) != members.end()) {
        auto made = world.group(members);
        if (!made.ok()) return "group: " + made.status().to_string();
        group = std::move(made).value();
      }
    }
    const bool in_group = random() % 4 == 0;
    const bool message = random() % 5 == 0;
    const std::uint64_t call_seed = random();
    std::mt19937_64 of_call(call_seed);
    if (in_group && group == nullptr) continue;
    Communicator& c = in_group ? *group : world;
    const std::string wrong = message ? one_message(c, of_call) : one_call(c, of_call);
    if (!wrong.empty()) return fmt::format("operation {}: {}", k, wrong);
    // By now every cache is full.
    if (k == operations / 2) memory = resident_bytes(), open = descriptors();
  }
  group.reset();
  const long growth = resident_bytes() - memory;
  const long open_at_end = descriptors();
  // A rank that leaves closes connections, which its peers still count.
  if (const Status together = world.barrier(); !together.ok()) return "barrier: " + together.to_string();
  if (world.rank() == 0)
    std::cout << fmt::format("{} operations, seed {}: memory grew by {} KiB in the second half\n", operations, seed,
                             growth >> 10)
              << std::flush;
  if (growth > kMaxGrowthBytes) return fmt::format("memory grew by {} bytes in the second half", growth);
  if (open_at_end != open) return fmt::format("{} descriptors became {}", open, open_at_end);
  return {};
}

class Soak : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, Soak, ::testing::Values("shm", "tcp"), [](const auto& info) { return std::string(info.param); });

TEST_P(Soak, ManyOperationsAreRightWithoutGrowth) {
  const std::uint64_t operations = from_environment("SHOAL_SOAK_OPERATIONS", kDefaultOperations);
  const std::uint64_t seed = from_environment("SHOAL_TEST_SEED", 20261121);
  CommunicatorOptions options;
  options.transports = GetParam();
  testing::expect_ranks(
      kRanks, options, [&](Communicator& c) { return soak(c, operations, seed); }, 60 + static_cast<double>(operations) / 500);
}

}  // namespace
}  // namespace shoal
