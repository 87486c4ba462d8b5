#include "transports/rails/link_shape.h"

#include <algorithm>

#include "transports/rails/wire.h"

namespace shoal::rails {
namespace {

// Pieces of a tile for each rail: more than one, so that a faster rail can take more of them.
constexpr std::size_t kStripesPerRail = 2;
constexpr std::size_t kSpareReceives = 4;      // for each link, beyond its tiles: control records, and duplicates
constexpr std::size_t kControlAndRecords = 3;  // of a link, in flight on a rail: one control record, hello and answer

constexpr std::size_t parts_for(std::size_t bytes, std::size_t each) noexcept { return (bytes + each - 1) / each; }

}  // namespace

std::size_t LinkShape::pieces(std::size_t bytes, std::size_t usable) const noexcept {
  const std::size_t least = std::max<std::size_t>(1, parts_for(bytes, is_written(bytes) ? max_write_bytes : piece_bytes));
  if (rails == 1 || bytes <= stripe_bytes) return least;
  return std::max(least, std::min({kStripesPerRail * usable, 2 * bytes / stripe_bytes, kMaxPieces}));
}

std::size_t LinkShape::max_sent_pieces() const noexcept { return pieces(write_from > 0 ? write_from : tile_bytes, rails); }

std::size_t LinkShape::max_pieces() const noexcept { return std::max(max_sent_pieces(), pieces(tile_bytes, rails)); }

std::size_t LinkShape::receives(const RailTraits& rail) const noexcept {
  const std::size_t messages = window * (max_sent_pieces() + (write_from > 0 ? 1 : 0)) + kSpareReceives;
  return messages + (rail.writes_take_receives ? window * max_pieces() : 0);
}

// Each piece of each tile, and the tile's announcement, may be in flight on the same rail, once.
std::size_t LinkShape::completions(const RailTraits& rail) const noexcept {
  const std::size_t written_here = write_from > 0 && !rail.writes_take_receives ? window * max_pieces() : 0;
  return receives(rail) + written_here + window * (max_pieces() + 1) + kControlAndRecords;
}

LinkShape shape_of(const Options& options, std::span<const RailTraits> rails) noexcept {
  LinkShape shape;
  shape.tile_bytes = options.tile_bytes;
  // Each rail has a bandwidth-delay product of its own.
  shape.window = std::min(kMaxWindow, options.tiles_per_peer * rails.size());
  shape.stripe_bytes = options.stripe_bytes;
  shape.rails = rails.size();
  std::size_t message = ~std::size_t{0};
  std::size_t write = ~std::size_t{0};
  for (const RailTraits& rail : rails) {
    message = std::min(message, rail.max_message_bytes);
    write = std::min(write, rail.emulated_writes ? 0 : rail.max_write_bytes);
  }
  const bool writes = write >= 4096 && options.write_from_bytes > 0 && options.write_from_bytes < options.tile_bytes &&
                      static_cast<std::size_t>(options.size) <= kMaxImmediateLinks;
  shape.write_from = writes ? options.write_from_bytes : 0;
  shape.max_write_bytes = std::min(write, round_up(shape.tile_bytes)) / kLine * kLine;
  const std::size_t largest = round_up(std::max(kRecordBytes, writes ? shape.write_from : shape.tile_bytes));
  shape.piece_bytes = message < kPacketBytes ? 0 : std::min(largest, (message - kPacketBytes) / kLine * kLine);
  return shape;
}

}  // namespace shoal::rails
