// What the processes of the test tell each other, in memory that they share.
#pragma once

#include <sys/mman.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace shoal::hostile {

inline constexpr int kRanks = 4;
inline constexpr int kLate = kRanks - 1;  ///< whose last connections the others wait for
inline constexpr int kLoner = 2;          ///< passes for a node of its own, so that there is data that goes by TCP
inline constexpr int kAttacker = kRanks;  ///< one more process beside the ranks

/// How far the second communicator may get: in each stage other listeners of it are at work, until the next one is allowed.
enum Stage : int {
  kControl = 1,       ///< all ranks connect their control links
  kSharedMemory = 2,  ///< rank 0 gathers those of its node, while the late rank and the loner are still at their control link
  kData = 3,          ///< all ranks connect their data links
  kOpen = 4,          ///< it gets ready
  kNever = 5,
};

/// The first bytes that a rank has sent on a connection that it made.
struct Taken {
  std::array<char, 80> to{};  ///< "127.0.0.1:4711", "[::1]:4711", "@00a3f" for a Unix socket
  std::atomic<std::uint64_t> inode = 0;
  std::atomic<std::size_t> bytes = 0;
  std::array<char, 1024> text{};
};

struct Board {
  struct Rank {
    std::atomic<pid_t> pid = -1;
    std::atomic<std::uint64_t> refused = 0;
    std::atomic<std::uint64_t> sums = 0;   ///< of the first communicator, all right
    std::atomic<long> heap_bytes = 0;      ///< in use
    std::atomic<bool> has_second = false;  ///< whose sums are right, too
  };
  std::array<Rank, kRanks> ranks;
  std::atomic<int> stage = kControl;
  std::atomic<bool> over = false;
  std::atomic<std::size_t> takes = 0;  ///< connections that ranks have made, whether or not there was room for them below
  std::array<Taken, 256> taken;

  /// Before the processes part. Never given back: they may end in any order.
  static Board& make() {
    void* const memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    return *new (memory) Board;
  }
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "else it would not work between processes");

}  // namespace shoal::hostile
