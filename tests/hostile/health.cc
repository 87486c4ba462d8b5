#include "tests/hostile/health.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/hostile/wait_until.h"

namespace shoal::hostile {
namespace {

#ifdef SHOAL_SANITIZED
constexpr bool kMemoryCounts = false;
#else
constexpr bool kMemoryCounts = true;
#endif
constexpr long kMostHeapGrowth = 16 << 10;
constexpr long kMostPrivateGrowth = 256 << 10;  // pages, and pools of threads, which are larger
constexpr std::uint64_t kSumsForTheBoard = 32;  // the heap is reported after every 16th

long descriptors(pid_t pid) {
  std::error_code error;
  const std::filesystem::directory_iterator files("/proc/" + std::to_string(pid) + "/fd", error);
  return std::distance(begin(files), end(files));
}

long private_bytes(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::stol(line.substr(8)) * 1024;
  }
  return 0;
}

}  // namespace

Memory memory_of(const SharedState& state) {
  Memory memory;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    const SharedState::Rank& one = state.ranks[rank];
    const std::uint64_t before = one.sums;
    wait_until([&] { return one.sums >= before + kSumsForTheBoard || state.over; });
    memory.heap_bytes[rank] = one.heap_bytes;
    memory.private_bytes[rank] = private_bytes(one.pid);
  }
  return memory;
}

std::string growth(const Memory& before, const Memory& after) {
  std::string text;
  for (std::size_t rank = 0; kMemoryCounts && rank < kRanks; ++rank) {
    const long in_use = after.heap_bytes[rank] - before.heap_bytes[rank];
    const long all = after.private_bytes[rank] - before.private_bytes[rank];
    if (in_use <= kMostHeapGrowth && all <= kMostPrivateGrowth) continue;
    text += "rank " + std::to_string(rank) + " grew by " + std::to_string(in_use) + " bytes in use, to " +
            std::to_string(after.heap_bytes[rank]) + ", and by " + std::to_string(all) + " in all, to " +
            std::to_string(after.private_bytes[rank]) + "; ";
  }
  return text;
}

Descriptors descriptors_of(const SharedState& state) {
  Descriptors fewest{};
  for (std::size_t rank = 0; rank < kRanks; ++rank) fewest[rank] = descriptors(state.ranks[rank].pid);
  for (int i = 0; i < 10; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    for (std::size_t rank = 0; rank < kRanks; ++rank) fewest[rank] = std::min(fewest[rank], descriptors(state.ranks[rank].pid));
  }
  return fewest;
}

std::string await_descriptors(const SharedState& state, const Descriptors& before) {
  std::string text;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    const auto now = [&] { return descriptors(state.ranks[rank].pid); };
    if (wait_until([&] { return now() == before[rank]; })) continue;
    text += "rank " + std::to_string(rank) + " holds " + std::to_string(now()) + " descriptors instead of " +
            std::to_string(before[rank]) + "; ";
  }
  return text;
}

}  // namespace shoal::hostile
