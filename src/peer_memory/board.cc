#include "src/peer_memory/board.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "src/peer_memory/slots.h"

namespace shoal {
namespace {

constexpr std::size_t kBoardPageBytes = 4096;

enum : std::uint32_t { kBlank, kBeingMade, kMade, kSpoilt };
constexpr auto kMutexPatience = std::chrono::seconds(1);  // for a rank that makes the mutex: it may have died

}  // namespace

/// Entries change under the mutex only.
struct PeerMemoryBoard::Header {
  struct Entry {
    std::uint64_t key;      ///< 0: free; written last, so that a member that dies meanwhile leaves a free one
    std::uint32_t members;  ///< that will join
    std::uint32_t left;     ///< that have left
  };

  std::atomic<std::uint32_t> state;
  std::uint32_t exhausted;  ///< 1: no group that has no entry yet gets a block any more
  pthread_mutex_t mutex;
  std::array<Entry, kBlocks> entries;

  /// Makes the mutex, where no rank has done so. False, then on all ranks: the board cannot be used.
  bool make() noexcept {
    // acquire: pairs with the exchange of the rank that has made the mutex.
    if (state.load(std::memory_order_acquire) == kMade) return true;
    std::uint32_t found = kBlank;
    if (state.compare_exchange_strong(found, kBeingMade)) {
      pthread_mutexattr_t shared;
      ::pthread_mutexattr_init(&shared);
      ::pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
      ::pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
      ::pthread_mutex_init(&mutex, &shared);
      ::pthread_mutexattr_destroy(&shared);
      found = kBeingMade;
      return state.compare_exchange_strong(found, kMade);
    }
    const auto until = std::chrono::steady_clock::now() + kMutexPatience;
    while ((found = state.load(std::memory_order_acquire)) == kBeingMade) {
      if (std::chrono::steady_clock::now() >= until) state.compare_exchange_strong(found, kSpoilt);
      std::this_thread::yield();
    }
    return found == kMade;
  }
  /// A rank that died while it held the lock has left nothing half done that matters: see Entry::key.
  void lock() noexcept {
    if (::pthread_mutex_lock(&mutex) == EOWNERDEAD) ::pthread_mutex_consistent(&mutex);
  }
  void unlock() noexcept { ::pthread_mutex_unlock(&mutex); }
};

PeerMemoryBoard::PeerMemoryBoard(std::span<std::byte> memory, int ranks)
    : memory_(memory), ranks_(static_cast<std::size_t>(ranks)) {
  static_assert(sizeof(Header) <= kBoardPageBytes);
  if (memory.size() < kBoardPageBytes || ranks < 1) return;
  const std::size_t bytes = (memory.size() - kBoardPageBytes) / (kBlocks * ranks_) / 64 * 64;
  if (OneShotRoom(bytes).large_bytes > 0) window_bytes_ = bytes;
}

PeerMemoryBoard::Header& PeerMemoryBoard::header() const noexcept { return *reinterpret_cast<Header*>(memory_.data()); }

std::span<std::byte> PeerMemoryBoard::window(std::size_t block, std::size_t member) const noexcept {
  return memory_.subspan(kBoardPageBytes + (block * ranks_ + member) * window_bytes_, window_bytes_);
}

std::optional<std::size_t> PeerMemoryBoard::join(std::uint64_t key, std::size_t members) {
  if (window_bytes_ == 0 || members > ranks_) return std::nullopt;
  if (!header().make()) return std::nullopt;
  header().lock();
  auto& entries = header().entries;
  const auto by_key = [&](std::uint64_t wanted) { return std::ranges::find(entries, wanted, &Header::Entry::key); };
  auto found = by_key(key);
  if (found == entries.end() && header().exhausted == 0) {
    found = by_key(0);
    if (found == entries.end()) {
      header().exhausted = 1;
    } else {
      found->members = static_cast<std::uint32_t>(members);
      found->left = 0;
      found->key = key;
    }
  }
  const bool mine = found != entries.end() && found->members == members;
  header().unlock();
  if (!mine) return std::nullopt;
  return static_cast<std::size_t>(found - entries.begin());
}

void PeerMemoryBoard::leave(std::size_t block) noexcept {
  header().lock();
  Header::Entry& entry = header().entries[block];
  if (++entry.left == entry.members) {
    // For the next group the slots must be zero again: they say which payloads are valid.
    for (std::size_t member = 0; member < entry.members; ++member) clear_window(window(block, member));
    entry.key = 0;
  }
  header().unlock();
}

PeerMemoryLease::PeerMemoryLease(PeerMemoryBoard board, std::uint64_t key, std::size_t members)
    : board_(board), block_(board_->join(key, members)), members_(members) {}

PeerMemoryLease& PeerMemoryLease::operator=(PeerMemoryLease&& other) noexcept {
  leave();
  board_ = other.board_;
  block_ = std::exchange(other.block_, std::nullopt);
  members_ = other.members_;
  return *this;
}

std::vector<std::span<std::byte>> PeerMemoryLease::windows() const {
  std::vector<std::span<std::byte>> windows;
  for (std::size_t member = 0; block_ && member < members_; ++member) windows.push_back(board_->window(*block_, member));
  return windows;
}

void PeerMemoryLease::leave() noexcept {
  if (block_) board_->leave(*std::exchange(block_, std::nullopt));
}

}  // namespace shoal
