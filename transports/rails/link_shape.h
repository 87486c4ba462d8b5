// Sizes that both ends of a link over rails agree on, and what follows from them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "transports/rails/rail.h"
#include "transports/rails/rails.h"

namespace shoal::rails {

inline constexpr std::size_t kLine = 64;  ///< bytes of a cache line; records and payloads start on one
constexpr std::size_t round_up(std::size_t bytes) noexcept { return (bytes + kLine - 1) / kLine * kLine; }

/// A plain value, the same for all links of a transport.
struct LinkShape {
  std::size_t tile_bytes = 0;
  std::size_t window = 0;       ///< tiles in flight in one direction
  std::size_t piece_bytes = 0;  ///< largest payload of a message; a multiple of 64
  std::size_t stripe_bytes = 0;
  std::size_t write_from = 0;  ///< larger tiles are written into the peer's slots; 0 = none
  std::size_t max_write_bytes = 0;
  std::size_t rails = 1;
  [[nodiscard]] bool several_rails() const noexcept { return rails > 1; }
  [[nodiscard]] bool is_written(std::size_t bytes) const noexcept { return write_from > 0 && bytes > write_from; }
  /// Distance of two neighbouring slots of the receiver.
  [[nodiscard]] std::size_t slot_bytes() const noexcept { return round_up(tile_bytes); }
  /// The receiver sends a report of its own when as many tiles have been released, or have arrived, without one.
  [[nodiscard]] std::size_t tiles_per_report() const noexcept { return std::max<std::size_t>(1, window / 4); }
  /// Number of pieces of a tile of `bytes` bytes that `usable` rails carry.
  [[nodiscard]] std::size_t pieces(std::size_t bytes, std::size_t usable) const noexcept;
  /// The most messages, without announcements, of a tile that is sent.
  [[nodiscard]] std::size_t max_sent_pieces() const noexcept;
  [[nodiscard]] std::size_t max_pieces() const noexcept;
  /// The most operations that carry a tile: its pieces and an announcement.
  [[nodiscard]] std::size_t parts_per_tile() const noexcept { return max_pieces() + 1; }
  /// Number of receives that one peer can consume on that rail.
  [[nodiscard]] std::size_t receives(const RailTraits& rail) const noexcept;
  /// The highest number of completions of one peer, in both directions, that can wait on that rail.
  [[nodiscard]] std::size_t completions(const RailTraits& rail) const noexcept;
};

/// The shape of all links over these rails; piece_bytes is too small for a record where the rails' messages are too small.
[[nodiscard]] LinkShape shape_of(const Options& options, std::span<const RailTraits> rails) noexcept;

}  // namespace shoal::rails
