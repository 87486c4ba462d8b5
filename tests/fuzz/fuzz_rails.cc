// Packets and records of the transports over libfabric and UCX. They are parsed again with a valid checksum, so that later
// checks are reached. An input that begins with kLinked drives one end of a link: a byte that configures it, then events, each
// a byte that selects it and its arguments. The peer holds the job key, however it misbehaves.
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tests/ofi/hand_peer.h"
#include "transports/common/checksum.h"
#include "transports/rails/rails.h"
#include "transports/rails/wire.h"

using namespace shoal;         // NOLINT(google-build-using-namespace): the whole file is one function
using namespace shoal::rails;  // NOLINT(google-build-using-namespace)

namespace {

constexpr std::size_t kMostTile = 65536;

constexpr std::uint8_t kLinked = 0xf0;  // this value or more

void take(std::span<const std::byte, kPacketBytes> bytes, const PacketKey& key) {
  const auto packet = decode_packet(bytes, key, kMostTile);
  if (!packet) return;
  if (packet->tile.size_bytes > kMostTile || packet->piece >= packet->pieces || packet->pieces > kMaxPieces) std::abort();
  const Extent extent = piece_extent(packet->tile.size_bytes, packet->pieces, packet->piece);
  if (extent.offset > packet->tile.size_bytes || extent.bytes > packet->tile.size_bytes - extent.offset) std::abort();
  std::array<std::byte, kPacketBytes> again{};
  encode(*packet, key, again);
  if (decode_packet(again, key, kMostTile) != packet) std::abort();
}

class Bytes {
 public:
  explicit Bytes(std::span<const std::uint8_t> rest) : rest_(rest) {}
  std::uint8_t byte() {
    const auto value = some(1);
    return value.empty() ? 0 : value.front();
  }
  std::span<const std::uint8_t> some(std::size_t most) {
    const auto part = rest_.first(std::min(most, rest_.size()));
    rest_ = rest_.subspan(part.size());
    return part;
  }
  [[nodiscard]] bool empty() const { return rest_.empty(); }

 private:
  std::span<const std::uint8_t> rest_;
};

/// Suppresses the library's messages about lost rails and damaged tiles on standard error.
class QuietStderr {
 public:
  QuietStderr() {
    static std::FILE* const nowhere = std::fopen("/dev/null", "w");
    if (nowhere != nullptr) stderr = nowhere;
  }
  ~QuietStderr() { stderr = before_; }
  QuietStderr(const QuietStderr&) = delete;
  QuietStderr& operator=(const QuietStderr&) = delete;

 private:
  std::FILE* const before_ = stderr;
};

/// One end of a link, in memory. Its first byte: bit 0: two rails; 1: tiles of more than 512 bytes are written; 2: checksums
/// from the start; 3: small messages, so that tiles have pieces; 4: the peer does not answer; 5: its address is from the input;
/// 6: each write takes a receive.
class End {
 public:
  explicit End(Bytes input) : input_(input) {
    const std::uint8_t shape = input_.byte();
    options_.size = 2;
    options_.tile_bytes = kTile;
    options_.tiles_per_peer = 2;
    options_.stripe_bytes = 1024;
    options_.write_from_bytes = 512;
    options_.integrity = (shape & 4) != 0;
    options_.key = key_from_text("the job's");
    options_.clock = [this] { return now_; };
    RailTraits traits;
    traits.provider = "by hand";
    traits.max_message_bytes = (shape & 8) != 0 ? 1024 : 1 << 20;
    traits.max_write_bytes = (shape & 2) != 0 ? 1 << 20 : 0;
    traits.receives = 1024;
    traits.writes_take_receives = (shape & 64) != 0;
    peer_.emplace(options_, traits, (shape & 1) != 0 ? 2 : 1);
    peer_->answers = (shape & 16) == 0;
    auto made = make_transport(options_, peer_->rails());
    if (!made.ok()) std::abort();
    end_ = std::move(*made);
    std::string address = peer_->address();
    if ((shape & 32) != 0) {
      const auto raw = input_.some(input_.byte());
      address.assign(raw.begin(), raw.end());
    }
    // An end whose handshake fails stays unconnected, but still parses what arrives.
    const bool connects = peer_->answers && (shape & 32) == 0;
    const std::chrono::milliseconds time_limit(connects ? 30'000 : peer_->answers ? 0 : 1);
    const int rank = 1;
    auto links = end_->connect({&rank, 1}, {&address, 1}, std::chrono::steady_clock::now() + time_limit);
    if (connects && !links.ok()) std::abort();
    if (links.ok()) link_ = std::move(links->front());
  }

  ~End() {
    // The end must leave at once in any state.
    peer_->refuses = 0;
    peer_->holds = false;
    peer_->complete();
    Packet packet;
    packet.kind = PacketKind::close_notice;
    end_->progress();
    for (std::size_t r = 0; r < peer_->wires.size(); ++r) peer_->send(r, packet);
    link_.reset();
  }

  void run() {
    while (!input_.empty()) {
      apply_event(input_.byte());
      end_->progress();
      read_tiles();
    }
  }

 private:
  static constexpr std::size_t kTile = 2048;

  void apply_event(std::uint8_t choice) {
    const std::size_t rail = choice / 16 % 2 % peer_->wires.size();
    switch (choice % 16) {
      case 0:
      case 1:
      case 2:
      case 3:
        return packet(rail, choice);
      case 4: {
        const auto raw = input_.some(input_.byte());
        peer_->deliver(rail, std::as_bytes(raw));
        return;
      }
      case 5: {  // damaged in transit
        auto message = peer_->encoded(made_packet());
        for (int bits = choice / 32 % 2 + 1; bits > 0; --bits) {
          const std::size_t bit = input_.byte() + 256U * input_.byte();
          message[bit / 8 % message.size()] ^= std::byte{1} << bit % 8;
        }
        peer_->deliver(rail, message);
        return;
      }
      case 6:
        return record(rail, choice);
      case 7:
      case 8: {
        const std::uint8_t link = choice / 32 == 7 ? input_.byte() : 0;
        const std::uint16_t position = input_.byte();
        const std::uint8_t piece = input_.byte();
        const std::size_t offset = position % 4 * kTile + piece_extent(kTile, 2, piece % 2).offset;
        peer_->write(rail, {link, position, piece}, offset, choice % 16 == 7 ? input_.byte() * 4U : 0);
        return;
      }
      case 9:
        if (link_ != nullptr) {
          static const std::vector<std::byte> tile(kTile, std::byte{5});
          const std::size_t bytes = input_.byte() * 8U;
          const TileHeader header{0, 0, 0, static_cast<std::uint32_t>(bytes), 0};
          static_cast<void>((choice & 16) != 0 ? link_->try_lend(header, std::span(tile).first(bytes))
                                               : link_->try_send(header, std::span(tile).first(bytes)));
        }
        return;
      case 10:
        keeps_tiles_ = (choice & 16) != 0;
        return;
      case 11:
        peer_->holds = (choice & 16) != 0;
        return;
      case 12:
        peer_->complete((choice & 16) != 0 ? EIO : 0);
        return;
      case 13:
        peer_->refuses = (choice & 16) == 0 ? 0 : (choice & 32) != 0 ? kAgain : -EIO;
        return;
      case 14:
        now_ += std::chrono::milliseconds(input_.byte() * 8);
        return;
      case 15:
        if ((choice & 16) != 0) end_->use_check_sums();
        if ((choice & 32) != 0) link_.reset();
        return;
    }
  }

  Packet made_packet() {
    Packet packet;
    packet.kind = static_cast<PacketKind>(input_.byte() % 9);
    const std::uint8_t how = input_.byte();
    packet.position = how % 16;
    if ((how & 16) != 0) packet.position += next_ - std::min<std::uint64_t>(next_, 8);
    packet.released = input_.byte();
    packet.arrived = input_.byte();
    packet.tile.size_bytes = input_.byte() * 8U + ((how & 32) != 0 ? 1 : 0);
    packet.pieces = (how & 64) != 0 ? input_.byte() + 1U : 1 + input_.byte() % 4U;
    packet.piece = input_.byte();
    if ((how & 128) != 0) {
      packet.has_checksum = true;
      packet.checksum = crc32c(std::vector<std::byte>(packet.tile.size_bytes, std::byte{7}));
      for (auto& count : packet.arrivals) count = input_.byte();
    }
    return packet;
  }

  void packet(std::size_t rail, std::uint8_t choice) {
    const Packet packet = made_packet();
    // A payload of the right size, or another.
    std::size_t payload = 0;
    if (packet.kind == PacketKind::data && packet.pieces > packet.piece)
      payload = piece_extent(packet.tile.size_bytes, packet.pieces, packet.piece).bytes;
    if ((choice & 128) != 0) payload += input_.byte() - std::min<std::size_t>(payload, 128);
    peer_->send(rail, packet, payload);
  }

  void record(std::size_t rail, std::uint8_t choice) {
    if (!peer_->has_hello()) return;  // no valid record exists yet
    Record record = peer_->record((choice & 32) != 0 ? RecordKind::answer : RecordKind::hello);
    const std::uint8_t changes = input_.byte();
    if ((changes & 1) != 0) record.kind = static_cast<RecordKind>(input_.byte() % 4);
    if ((changes & 2) != 0) record.nonce[0] ^= std::byte{input_.byte()};
    if ((changes & 4) != 0) record.peer_nonce[3] ^= std::byte{input_.byte()};
    if ((changes & 8) != 0) record.from_rank = input_.byte();
    if ((changes & 16) != 0) record.to_rank = input_.byte();
    if ((changes & 32) != 0) record.link = input_.byte();
    if ((changes & 64) != 0) record.window = record.rails = input_.byte();
    if ((changes & 128) != 0) record.slots[input_.byte() % kMaxRails].base = input_.byte();
    auto bytes = encode(record, options_.key);
    if ((choice & 64) != 0) bytes[input_.byte()] ^= std::byte{1};
    peer_->deliver(rail, bytes);
  }

  void read_tiles() {
    if (link_ == nullptr) return;
    while (const Arrival* arrival = link_->peek()) {
      if (arrival->data.size() > kTile || arrival->data.size() != arrival->header.size_bytes) std::abort();
      static_cast<void>(crc32c(arrival->data));  // all bytes must be readable
      if (keeps_tiles_) return;                  // not released
      link_->release();
      ++next_;
    }
    if (link_->sent_tiles() > 1U << 20) std::abort();
  }

  Options options_;
  Bytes input_;
  std::chrono::steady_clock::time_point now_{std::chrono::hours(1)};
  std::optional<testing::HandPeer> peer_;
  std::unique_ptr<Transport> end_;
  std::unique_ptr<Link> link_;
  bool keeps_tiles_ = false;
  std::uint64_t next_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Key key = key_from_text("nobody's");
  static const PacketKey packet_key = make_packet_key(key, {}, {});
  if (size > 1 && data[0] >= kLinked) {
    const QuietStderr quiet;
    End(Bytes(std::span(data, size).subspan(1))).run();
  }
  std::array<std::byte, kPacketBytes> raw{};
  std::memcpy(raw.data(), data, std::min(size, raw.size()));
  take(raw, packet_key);
  // Arbitrary fields with a valid checksum.
  const auto field = [&](std::size_t at, auto& value) {
    if (at < size) std::memcpy(&value, data + at, std::min(size - at, sizeof value));
  };
  Packet packet;
  field(0, packet.kind), field(1, packet.piece), field(5, packet.pieces), field(9, packet.tile), field(41, packet.position);
  std::array<std::byte, kPacketBytes> sealed{};
  encode(packet, packet_key, sealed);
  take(sealed, packet_key);
  // One changed bit is corrected.
  if (const auto whole = decode_packet(sealed, packet_key, kMostTile)) {
    std::uint16_t bit = 0;
    field(49, bit);
    sealed[bit / 8 % sealed.size()] ^= std::byte{1} << bit % 8;
    if (repair_packet(sealed, packet_key, kMostTile) != whole) std::abort();
  }

  RecordBytes record{};
  std::memcpy(record.data(), data, std::min(size, record.size()));
  if (is_proven(record, key)) std::abort();  // an HMAC cannot be guessed
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
  if (to_bits(to_immediate(mark)) != mark) std::abort();
  return 0;
}
