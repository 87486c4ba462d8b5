// State that the processes of the test share.
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
inline constexpr int kLate = kRanks - 1;  ///< the rank whose connections are held back
inline constexpr int kIsolated = 2;       ///< appears as a node of its own, so that data travels over TCP
inline constexpr int kAttacker = kRanks;  ///< the process after the ranks

/// How far the creation of the second communicator may proceed; in each stage other listeners of it accept connections.
enum Stage : int {
  kSharedMemory = 1,  ///< rank 0 gathers the ranks of its node; the late and the isolated rank do not have the addresses yet
  kData = 2,          ///< control connections are made, and all ranks connect their data links
  kOpen = 3,          ///< the communicator is completed
  kNever = 4,
};

/// The first bytes that a rank sent on a connection that it made.
struct RecordedConnection {
  std::array<char, 80> to{};  ///< "127.0.0.1:4711", "[::1]:4711", "@00a3f" for a Unix socket
  std::atomic<std::uint64_t> inode = 0;
  std::atomic<std::size_t> bytes = 0;
  std::array<char, 2048> text{};  // at least a message of shared memory
};

struct SharedState {
  struct Rank {
    std::atomic<pid_t> pid = -1;
    std::atomic<std::uint64_t> refused = 0;
    std::atomic<std::uint64_t> sums = 0;     ///< correct sums of the first communicator
    std::atomic<long> heap_bytes = 0;        ///< in use
    std::atomic<bool> second_works = false;  ///< the second communicator works
  };
  std::array<Rank, kRanks> ranks;
  std::atomic<int> stage = kSharedMemory;
  std::atomic<bool> over = false;
  std::atomic<std::size_t> connections = 0;  ///< connections that ranks made, including those that `recorded` has no room for
  std::array<RecordedConnection, 256> recorded;

  /// Call before fork(). Never unmapped, since the processes may end in any order.
  static SharedState& make() {
    void* const memory = ::mmap(nullptr, sizeof(SharedState), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    return *new (memory) SharedState;
  }
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "required between processes");

}  // namespace shoal::hostile
