// The one_shot Program over shared windows: data and flag in one cache line, one round, no links.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "src/engine/signature.h"

namespace shoal {

/// What a rank shows its node in a one-shot call. A window has two slots, used in turn: a rank may write slot k % 2 again for
/// call k + 2 because it has then seen every peer's contribution to call k + 1, which each made after it had finished with call
/// k.
///
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
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "the flag is shared between processes");

/// Payload that one slot of a window of `window_bytes` holds.
constexpr std::size_t one_shot_capacity(std::size_t window_bytes) noexcept {
  return window_bytes / 2 <= sizeof(OneShotSlot) ? 0 : window_bytes / 2 / 64 * 64 - sizeof(OneShotSlot);
}

inline OneShotSlot& one_shot_slot(std::span<std::byte> window, std::uint64_t count) noexcept {
  return *reinterpret_cast<OneShotSlot*>(window.data() + (count % 2) * (window.size() / 2 / 64 * 64));
}

}  // namespace shoal
