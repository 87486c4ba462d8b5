// What the ranks of a node write into their shared windows: one_shot's data, and where a call's buffers lie.
//
//   window = one-shot slot | one-shot slot | meeting slot | meeting slot
//
// Slots of a kind are used in turn: a rank may write slot k % 2 again for call k + 2 because it has then seen every peer's part
// in call k + 1, which each took after it had finished with call k.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "src/engine/signature.h"

namespace shoal {

/// Small payloads lie beside the flag, in the line that the peers read anyway; larger ones follow.
struct alignas(64) OneShotSlot {
  static constexpr std::size_t kInlineBytes = 32;

  std::atomic<std::uint64_t> flag;  ///< sequence of the call + 1, written last
  CallSignature signature;
  std::byte inline_data[kInlineBytes];

  [[nodiscard]] std::byte* data(std::size_t bytes) noexcept {
    return bytes <= kInlineBytes ? inline_data : reinterpret_cast<std::byte*>(this + 1);
  }
};
static_assert(sizeof(OneShotSlot) == 64);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "the flags are shared between processes");

/// Where the buffers of a rank's call lie, as Transport::shared_memory() understands it.
struct alignas(64) MeetingSlot {
  static constexpr std::uint64_t kOrdinary = ~std::uint64_t{0};  ///< as input: not in shared memory

  std::atomic<std::uint64_t> entered;  ///< sequence of the call + 1, written after what follows
  CallSignature signature;
  std::uint64_t input;
  std::uint64_t output;
  std::atomic<std::uint64_t> left;  ///< sequence of the call + 1, when the rank has written its share everywhere
};
static_assert(sizeof(MeetingSlot) == 64);

inline constexpr std::size_t kMeetingBytes = 2 * sizeof(MeetingSlot);

constexpr std::size_t one_shot_slot_bytes(std::size_t window_bytes) noexcept {
  return window_bytes < kMeetingBytes ? 0 : (window_bytes - kMeetingBytes) / 2 / 64 * 64;
}

/// Payload that one slot of a window of `window_bytes` holds.
constexpr std::size_t one_shot_capacity(std::size_t window_bytes) noexcept {
  return one_shot_slot_bytes(window_bytes) <= sizeof(OneShotSlot) ? 0 : one_shot_slot_bytes(window_bytes) - sizeof(OneShotSlot);
}

inline OneShotSlot& one_shot_slot(std::span<std::byte> window, std::uint64_t count) noexcept {
  return *reinterpret_cast<OneShotSlot*>(window.data() + (count % 2) * one_shot_slot_bytes(window.size()));
}

inline MeetingSlot& meeting_slot(std::span<std::byte> window, std::uint64_t count) noexcept {
  return *reinterpret_cast<MeetingSlot*>(window.data() + 2 * one_shot_slot_bytes(window.size()) +
                                         (count % 2) * sizeof(MeetingSlot));
}

}  // namespace shoal
