// The layout of shared windows: what the ranks of a node give to one_shot calls, and where the buffers of zero-copy calls lie.
//
//   window = one-shot slot x 16 | small place x 16 | large place x 2 | zero-copy slot x 2
//
// Slots and places of a kind are used in turn. A payload that does not fit into its slot lies in a place. A rank writes a slot
// or a place again when every peer has begun a later call than the one that it was written for, since the peer has then read
// what it needed.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "src/diagnosis/signature.h"

namespace shoal {

/// A signature that may be read while it is being written: the value counts only if that did not happen. release and acquire:
/// a thread that reads some of the new words also sees all that was written before them.
class RacySignature {
 public:
  void store(const CallSignature& signature) noexcept {
    std::uint64_t words[kWords];
    std::memcpy(words, &signature, sizeof words);
    for (std::size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_release);
  }
  [[nodiscard]] CallSignature load() const noexcept {
    std::uint64_t words[kWords];
    for (std::size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_acquire);
    CallSignature signature;
    std::memcpy(&signature, words, sizeof words);
    return signature;
  }

 private:
  static constexpr std::size_t kWords = sizeof(CallSignature) / sizeof(std::uint64_t);
  std::atomic<std::uint64_t> words_[kWords];
};

/// Small payloads lie beside the flag, in the line that the peers read anyway.
struct alignas(64) OneShotSlot {
  static constexpr std::size_t kInlineBytes = 32;

  std::atomic<std::uint64_t> flag;  ///< sequence of the call + 1, written last
  RacySignature signature;
  std::byte inline_data[kInlineBytes];
};
static_assert(sizeof(OneShotSlot) == 64);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "the flags are shared between processes");

/// Where the buffers of a rank's call lie: in memory that all ranks share, as Transport::shared_memory() understands it, or,
/// where kAddress is set, anywhere in the rank's process.
struct alignas(64) ZeroCopySlot {
  static constexpr std::uint64_t kOrdinary = ~std::uint64_t{0};      ///< as input: the peers cannot reach what they need
  static constexpr std::uint64_t kAddress = std::uint64_t{1} << 63;  ///< the rest is an address

  std::atomic<std::uint64_t> entered;  ///< sequence of the call + 1, written after what follows
  CallSignature signature;
  std::uint64_t input;
  std::uint64_t output;
  std::atomic<std::uint64_t> left;   ///< sequence of the call + 1, when the rank has done its part everywhere
  std::atomic<std::uint64_t> guard;  ///< see window_guard()
};
static_assert(sizeof(ZeroCopySlot) == 64);

/// One-shot slots of a rank: a rank that waits for no peer may be so many calls less one ahead of its peers.
inline constexpr std::uint64_t kOneShotSlots = 16;

/// What lies outside the payloads.
inline constexpr std::size_t kWindowHeaderBytes = kOneShotSlots * sizeof(OneShotSlot) + 2 * sizeof(ZeroCopySlot);

/// Where the payload of a call lies; the same on every rank.
enum class OneShotPlace : std::uint8_t { in_slot, small, large };

/// Bytes that fit into the places of a window.
struct OneShotRoom {
  std::size_t small_bytes = 0;
  std::size_t large_bytes = 0;  ///< 0: the window serves no calls

  constexpr OneShotRoom() = default;
  constexpr explicit OneShotRoom(std::size_t window_bytes) {
    const std::size_t lines = (std::max(window_bytes, kWindowHeaderBytes) - kWindowHeaderBytes) / 64;
    small_bytes = lines / 3 / kOneShotSlots * 64;
    large_bytes = lines / 3 * 64;
  }
};

inline OneShotSlot& one_shot_slot(std::span<std::byte> window, std::uint64_t count) noexcept {
  return reinterpret_cast<OneShotSlot*>(window.data())[count % kOneShotSlots];
}

/// `room`: of windows of this size.
inline std::byte* one_shot_data(std::span<std::byte> window, const OneShotRoom& room, std::uint64_t count,
                                OneShotPlace place) noexcept {
  if (place == OneShotPlace::in_slot) return one_shot_slot(window, count).inline_data;
  std::byte* small = window.data() + kOneShotSlots * sizeof(OneShotSlot);
  if (place == OneShotPlace::small) return small + count % kOneShotSlots * room.small_bytes;
  return small + kOneShotSlots * room.small_bytes + count % 2 * room.large_bytes;
}

inline ZeroCopySlot& meeting_slot(std::span<std::byte> window, std::uint64_t count) noexcept {
  return *reinterpret_cast<ZeroCopySlot*>(window.data() + window.size() - (2 - count % 2) * sizeof(ZeroCopySlot));
}

/// Resets a window to its initial state, for all ranks. No rank uses it meanwhile.
inline void clear_window(std::span<std::byte> window) noexcept {
  std::memset(window.data(), 0, kOneShotSlots * sizeof(OneShotSlot));
  std::memset(window.data() + window.size() - 2 * sizeof(ZeroCopySlot), 0, 2 * sizeof(ZeroCopySlot));
}

/// The flags by which a rank guards memory while it and its peers write to each other, for as long as the communicator lives.
/// Only the rank that owns the window changes the word.
inline std::atomic<std::uint64_t>& window_guard(std::span<std::byte> window) noexcept { return meeting_slot(window, 0).guard; }
inline constexpr std::uint64_t kGuardWriting = 1;  ///< it may be writing into the peers' memory at this moment
inline constexpr std::uint64_t kGuardRevoked = 2;  ///< it has aborted: its memory must not be written any more

}  // namespace shoal
