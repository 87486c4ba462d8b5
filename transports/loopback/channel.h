// One direction of a loopback link: a queue of tiles with simulated faults.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "transports/loopback/loopback.h"
#include "transports/transport.h"

namespace shoal::loopback {

using Clock = std::chrono::steady_clock;

/// A pseudo-random number that depends on the argument alone (the finisher of splitmix64, Steele et al., OOPSLA 2014).
inline std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

/// The faults of the tiles from `from` to `to`. A value with pure functions.
struct Fate {
  std::uint64_t stream = 0;  ///< the seed mixed with the link
  std::chrono::microseconds mean_delay{0};
  double refuse_probability = 0;

  static Fate of(const LoopbackOptions& options, int from, int to) {
    const auto link = (static_cast<std::uint64_t>(from) << 32) | static_cast<std::uint32_t>(to);
    return {mix(options.seed ^ mix(link)), options.mean_delay, options.refuse_probability};
  }
  [[nodiscard]] std::chrono::nanoseconds delay(std::uint64_t tile) const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(mean_delay * (2 * unit(mix(stream ^ mix(2 * tile)))));
  }
  /// How many attempts to send this tile are refused.
  [[nodiscard]] int refusals(std::uint64_t tile) const {
    int count = 0;
    for (std::uint64_t draw = mix(stream ^ mix(2 * tile + 1)); unit(draw) < refuse_probability; draw = mix(draw)) ++count;
    return count;
  }

 private:
  static double unit(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }
};

/// Thread rule: any method from any thread; the tile that show() returned stays in place until release().
class Channel {
 public:
  Channel(const LoopbackOptions& options, int from, int to)
      : fate_(Fate::of(options, from, to)),
        late_copy_(options.late_copy),
        slots_(static_cast<std::size_t>(options.capacity_tiles)),
        refusals_left_(fate_.refusals(0)) {
    // Not touched before the first tile arrives, so unused links take no memory.
    for (Slot& slot : slots_) slot.memory = std::make_unique_for_overwrite<std::byte[]>(options.tile_bytes);
  }

  enum class Offer { taken, full, refused, broken };

  Offer offer(const TileHeader& header, std::span<const std::byte> data) {
    const std::lock_guard lock(mutex_);
    if (closed_) return Offer::broken;
    if (accepted_ - released_ == slots_.size()) return Offer::full;
    if (refusals_left_ > 0) {
      --refusals_left_;
      return Offer::refused;
    }
    Slot& slot = slot_of(accepted_);
    slot.header = header;
    slot.source = data.data();
    slot.due = Clock::time_point::min();
    if (fate_.mean_delay.count() > 0) {
      last_due_ = std::max(last_due_, Clock::now() + fate_.delay(accepted_));
      slot.due = last_due_;
    }
    ++accepted_;
    refusals_left_ = fate_.refusals(accepted_);
    if (!late_copy_) copy_until(accepted_);
    return Offer::taken;
  }

  /// The oldest tile that is due and not released. look() has counted and copied it.
  std::optional<Arrival> show() {
    const std::lock_guard lock(mutex_);
    if (released_ >= copied_.load(std::memory_order_relaxed) || released_ == arrived_) return std::nullopt;
    const Slot& slot = slot_of(released_);
    return Arrival{slot.header, {slot.memory.get(), slot.header.size_bytes}};
  }
  void release() {
    const std::lock_guard lock(mutex_);
    ++released_;
  }

  /// Number of tiles whose source memory is free.
  [[nodiscard]] std::uint64_t copied() const { return copied_.load(std::memory_order_acquire); }
  [[nodiscard]] bool has_room() const {
    const std::lock_guard lock(mutex_);
    return accepted_ - released_ < slots_.size();
  }

  struct View {
    std::uint64_t arrived = 0;                  ///< tiles that are due, counted from the first one
    std::optional<Clock::time_point> next_due;  ///< due time of the first tile that is not due yet
    bool closed = false;                        ///< no more tiles will arrive
    bool copied_some = false;                   ///< source memory became free in this call
  };
  /// For the receiving end: counts and copies the tiles that are due.
  View look() {
    const std::lock_guard lock(mutex_);
    View view;
    view.arrived = due_count();
    if (view.arrived < accepted_) view.next_due = slot_of(view.arrived).due;
    view.closed = closed_ && view.arrived == accepted_;
    view.copied_some = copy_until(view.arrived);
    return view;
  }

  /// Copies the payloads that are still in the sender's memory.
  void copy_all() {
    const std::lock_guard lock(mutex_);
    copy_until(accepted_);
  }

  /// Ends the channel: it takes no more tiles. With `deliver`, tiles taken so far still arrive. Without, those whose payload
  /// is still in the sender's memory are lost, because that memory may be gone.
  void close(bool deliver) {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
    if (deliver) {
      copy_until(accepted_);
    } else {
      accepted_ = copied_.load(std::memory_order_relaxed);
    }
  }

 private:
  struct Slot {
    TileHeader header;
    const std::byte* source = nullptr;
    Clock::time_point due{};
    std::unique_ptr<std::byte[]> memory;
  };

  Slot& slot_of(std::uint64_t tile) { return slots_[tile % slots_.size()]; }

  std::uint64_t due_count() {
    if (arrived_ == accepted_) return arrived_;
    const bool timed = fate_.mean_delay.count() > 0;
    const Clock::time_point now = timed ? Clock::now() : Clock::time_point{};
    while (arrived_ < accepted_ && (!timed || slot_of(arrived_).due <= now)) ++arrived_;
    return arrived_;
  }

  bool copy_until(std::uint64_t end) {
    std::uint64_t tile = copied_.load(std::memory_order_relaxed);  // only changed under the mutex
    if (tile >= end) return false;
    for (; tile < end; ++tile) {
      Slot& slot = slot_of(tile);
      if (slot.header.size_bytes > 0) std::memcpy(slot.memory.get(), slot.source, slot.header.size_bytes);
    }
    // Orders the reads of the sender's memory before the sender's next write to it (copied()).
    copied_.store(tile, std::memory_order_release);
    return true;
  }

  const Fate fate_;
  const bool late_copy_;
  mutable std::mutex mutex_;
  std::vector<Slot> slots_;
  std::uint64_t accepted_ = 0;
  std::uint64_t arrived_ = 0;  ///< tiles that have become due
  std::uint64_t released_ = 0;
  std::atomic<std::uint64_t> copied_ = 0;
  Clock::time_point last_due_{};
  int refusals_left_;
  bool closed_ = false;
};

}  // namespace shoal::loopback
