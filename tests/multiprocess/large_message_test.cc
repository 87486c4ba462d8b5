// More than 2^31 bytes in one call. Labelled `large`: it needs some 4.4 GB of memory.
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <random>
#include <string>

#include <fmt/format.h>

#include "tests/multiprocess/ranks.h"

namespace shoal {
namespace {

constexpr std::size_t kCount = (std::size_t{1} << 31) + 12345;
constexpr int kRanks = 2;
constexpr std::uint32_t kSeed = 31;

std::size_t available_bytes() {
  std::ifstream info("/proc/meminfo");
  std::string name;
  std::string unit;
  for (std::size_t kib = 0; info >> name >> kib && std::getline(info, unit);) {
    if (name == "MemAvailable:") return kib * 1024;
  }
  return 0;
}

// Calls `visit` with positions all over the message, many around powers of two and at both ends.
template <typename Visit>
void for_samples(Visit visit) {
  std::mt19937_64 random(kSeed);
  for (std::size_t i = 0; i < 64; ++i) visit(i), visit(kCount - 1 - i);
  for (std::size_t power = 4096; power < kCount; power *= 2) visit(power - 1), visit(power), visit(power + 1);
  for (int i = 0; i < 4000; ++i) visit(random() % kCount);
}

// Never zero, the value of untouched memory.
std::uint8_t value_of(int rank, std::size_t i) {
  return static_cast<std::uint8_t>(1 + (i * 7 + static_cast<std::size_t>(rank) * 101) % 255);
}

TEST(LargeMessage, AllReduceHandlesMoreThan2GiB) {
  const std::size_t needed = kRanks * kCount + (std::size_t{256} << 20);
  if (available_bytes() < needed)
    GTEST_SKIP() << "needs " << needed << " bytes of memory, " << available_bytes() << " are available";
  CommunicatorOptions options;
  options.transports = "shm";
  testing::expect_ranks(
      kRanks, options,
      [](Communicator& c) -> std::string {
        void* memory = ::mmap(nullptr, kCount, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) return "mmap failed";
        auto* data = static_cast<std::uint8_t*>(memory);
        for_samples([&](std::size_t i) { data[i] = value_of(c.rank(), i); });
        if (const Status status = c.all_reduce(data, data, kCount, DataType::uint8, ReduceOp::max); !status.ok())
          return status.to_string();
        std::string error;
        for_samples([&](std::size_t i) {
          const std::uint8_t expected = std::max(value_of(0, i), value_of(1, i));
          if (error.empty() && data[i] != expected)
            error = fmt::format("element {} is {}, not {} (seed {})", i, data[i], expected, kSeed);
        });
        ::munmap(memory, kCount);
        return error;
      },
      240);
}

}  // namespace
}  // namespace shoal
