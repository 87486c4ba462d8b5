// Packets and records of the transports over libfabric and UCX. Check sums are made right for a second look, so that the checks
// behind them are reached.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "transports/rails/wire.h"

using namespace shoal;         // NOLINT(google-build-using-namespace): the whole file is one function
using namespace shoal::rails;  // NOLINT(google-build-using-namespace)

namespace {

constexpr std::size_t kMostTile = 65536;

void take(std::span<const std::byte, kPacketBytes> bytes) {
  const auto packet = decode_packet(bytes, kMostTile);
  if (!packet) return;
  if (packet->tile.size_bytes > kMostTile || packet->piece >= packet->pieces || packet->pieces > kMaxPieces) std::abort();
  const Extent extent = piece_extent(packet->tile.size_bytes, packet->pieces, packet->piece);
  if (extent.offset > packet->tile.size_bytes || extent.bytes > packet->tile.size_bytes - extent.offset) std::abort();
  std::array<std::byte, kPacketBytes> again{};
  encode(*packet, again);
  if (decode_packet(again, kMostTile) != packet) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Key key = key_from_text("nobody's");
  std::array<std::byte, kPacketBytes> raw{};
  std::memcpy(raw.data(), data, std::min(size, raw.size()));
  take(raw);
  // Any fields behind a right check sum.
  const auto field = [&](std::size_t at, auto& value) {
    if (at < size) std::memcpy(&value, data + at, std::min(size - at, sizeof value));
  };
  Packet packet;
  field(0, packet.kind), field(1, packet.piece), field(5, packet.pieces), field(9, packet.tile), field(41, packet.position);
  std::array<std::byte, kPacketBytes> sealed{};
  encode(packet, sealed);
  take(sealed);
  // One changed bit is put right.
  if (const auto whole = decode_packet(sealed, kMostTile)) {
    std::uint16_t bit = 0;
    field(49, bit);
    sealed[bit / 8 % sealed.size()] ^= std::byte{1} << bit % 8;
    if (mend_packet(sealed, kMostTile) != whole) std::abort();
  }

  RecordBytes record{};
  std::memcpy(record.data(), data, std::min(size, record.size()));
  if (is_proven(record, key)) std::abort();  // nobody guesses an HMAC
  if (decode_record(record) && !looks_like_record(record)) std::abort();
  Record made;
  field(0, made.kind), field(2, made.version), field(4, made.from_rank), field(8, made.rails), field(10, made.slots);
  const RecordBytes encoded = encode(made, key);
  if (!is_proven(encoded, key)) std::abort();
  const auto decoded = decode_record(encoded);
  if (decoded && !(*decoded == made)) std::abort();
  if (!decoded && (made.kind == RecordKind::hello || made.kind == RecordKind::answer)) std::abort();

  std::uint32_t mark = 0;
  field(0, mark);
  if (to_data(to_mark(mark)) != mark) std::abort();
  return 0;
}
