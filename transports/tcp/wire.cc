#include "transports/tcp/wire.h"

#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "transports/common/checksum.h"

namespace shoal::tcp {
namespace {

constexpr std::uint32_t kHelloMagic = 0x4c4f4853;    // "SHOL" in the order of the bytes
constexpr std::uint32_t kFrameMagic = 0x454c4954;    // "TILE"
constexpr std::uint32_t kSummedMagic = 0x534c4954;   // "TILS": the payload has a checksum
constexpr std::uint32_t kControlMagic = 0x44524f57;  // "WORD"

// The check of a record does not cover the magic: one changed bit must not turn one kind into the other.
constexpr bool is_frame_magic(std::uint32_t magic) { return magic == kFrameMagic || magic == kSummedMagic; }
static_assert(std::popcount(kFrameMagic ^ kSummedMagic) >= 2);

// A handshake record: fields, nonce, and then the proof of these.
constexpr std::size_t kProvenBytes = 64;
static_assert(kProvenBytes + std::tuple_size_v<Proof> == kHelloBytes);

bool has_nonce(HelloKind kind) noexcept { return kind == HelloKind::greet || kind == HelloKind::reply; }

Proof proof_of(const HelloRecord& record, const Key& key, std::string_view before) noexcept {
  return prove(key, "tcp link", {before, as_text(record).substr(0, kProvenBytes)});
}

}  // namespace

HelloRecord encode(const Hello& hello, const Key& key, std::string_view before) noexcept {
  HelloRecord record{};
  std::byte* at = record.data();
  store_little(at + 8, hello.version);
  store_little(at + 10, static_cast<std::uint16_t>(hello.kind));
  store_little(at + 12, hello.size);
  store_little(at + 16, hello.job_id);
  store_little(at + 24, hello.from_rank);
  store_little(at + 28, hello.to_rank);
  store_little(at + 32, hello.sockets);
  store_little(at + 34, hello.socket_index);
  store_little(at + 36, hello.integrity);
  store_little(at + 38, hello.encryption);
  store_little(at + 40, hello.tile_bytes);
  // Either of the two: a side that is authenticated needs no nonce any more.
  if (has_nonce(hello.kind)) {
    store_little(at + 48, hello.nonce);
  } else {
    store_little(at + 48, hello.received);
  }
  write_prelude(at, kProvenBytes, kHelloMagic);
  store_little(at + kProvenBytes, proof_of(record, key, before));
  return record;
}

bool is_proven(const HelloRecord& record, const Key& key, std::string_view before) noexcept {
  return same(std::span(record).subspan<kProvenBytes>(), proof_of(record, key, before));
}

std::optional<Hello> decode_hello(std::span<const std::byte, kHelloBytes> bytes) noexcept {
  const std::byte* at = bytes.data();
  if (!has_prelude(at, kProvenBytes, kHelloMagic)) return {};
  Hello hello;
  hello.version = load_little<std::uint16_t>(at + 8);
  const auto kind = load_little<std::uint16_t>(at + 10);
  if (kind < 1 || kind > 5) return {};
  hello.kind = static_cast<HelloKind>(kind);
  hello.size = load_little<std::uint32_t>(at + 12);
  hello.job_id = load_little<std::uint64_t>(at + 16);
  hello.from_rank = load_little<std::uint32_t>(at + 24);
  hello.to_rank = load_little<std::uint32_t>(at + 28);
  hello.sockets = load_little<std::uint16_t>(at + 32);
  hello.socket_index = load_little<std::uint16_t>(at + 34);
  hello.integrity = load_little<std::uint16_t>(at + 36);
  hello.encryption = load_little<std::uint16_t>(at + 38);
  hello.tile_bytes = load_little<std::uint32_t>(at + 40);
  if (has_nonce(hello.kind)) {
    hello.nonce = load_little<Nonce>(at + 48);
  } else {
    hello.received = load_little<std::uint64_t>(at + 48);
  }
  return hello;
}

void encode(const FrameHeader& header, std::span<const std::byte> payload,
            std::span<std::byte, kFrameHeaderBytes> bytes) noexcept {
  std::byte* at = bytes.data();
  store_little(at + 8, header.position);
  store_little(at + 16, header.tile.communicator);
  store_little(at + 20, header.tile.sequence);
  store_little(at + 24, header.tile.edge);
  store_little(at + 28, header.tile.size_bytes);
  store_little(at + 32, header.tile.offset_bytes);
  static_assert(payload_offset(0) == 40);
  std::memset(at + 40, 0, kTinyBytes);
  const bool tiny = header.tile.size_bytes <= kTinyBytes;
  const bool summed = header.payload_sum && !tiny;
  if (tiny) {
    if (!payload.empty()) std::memcpy(at + 40, payload.data(), payload.size());
  } else {
    if (summed) store_little(at + 40, *header.payload_sum);
    store_little(at + 44, header.packed_bytes);
  }
  write_prelude(at, kFrameHeaderBytes, summed ? kSummedMagic : kFrameMagic);
}

std::optional<FrameHeader> decode_frame(std::span<const std::byte, kFrameHeaderBytes> bytes,
                                        std::size_t max_payload_bytes) noexcept {
  const std::byte* at = bytes.data();
  const auto magic = load_little<std::uint32_t>(at);
  if (!is_frame_magic(magic) || !has_prelude(at, kFrameHeaderBytes, magic)) return {};
  FrameHeader header;
  header.position = load_little<std::uint64_t>(at + 8);
  header.tile.communicator = load_little<std::uint32_t>(at + 16);
  header.tile.sequence = load_little<std::uint32_t>(at + 20);
  header.tile.edge = load_little<std::uint32_t>(at + 24);
  header.tile.size_bytes = load_little<std::uint32_t>(at + 28);
  header.tile.offset_bytes = load_little<std::uint64_t>(at + 32);
  if (header.tile.size_bytes > max_payload_bytes) return {};
  if (magic == kSummedMagic) header.payload_sum = load_little<std::uint32_t>(at + 40);
  if (header.tile.size_bytes <= kTinyBytes) return header.payload_sum ? std::nullopt : std::optional(header);
  header.packed_bytes = load_little<std::uint32_t>(at + 44);
  if (header.packed_bytes != 0 && (header.packed_bytes <= kTinyBytes || header.packed_bytes >= header.tile.size_bytes))
    return {};
  return header;
}

std::string describe_bad_frame(std::span<const std::byte, kFrameHeaderBytes> bytes, std::size_t max_payload_bytes) {
  const std::byte* at = bytes.data();
  const auto magic = load_little<std::uint32_t>(at);
  if (!is_frame_magic(magic)) return fmt::format("magic {:#010x} instead of {:#010x}", magic, kFrameMagic);
  if (!has_prelude(at, kFrameHeaderBytes, magic)) return "the checksum is wrong";
  const auto size_bytes = load_little<std::uint32_t>(at + 28);
  if (size_bytes > max_payload_bytes)
    return fmt::format("a payload of {} bytes where at most {} are allowed", size_bytes, max_payload_bytes);
  return fmt::format("a payload of {} bytes, packed into {}", size_bytes, load_little<std::uint32_t>(at + 44));
}

void encode(const ControlRecord& record, std::span<std::byte, kControlRecordBytes> bytes) noexcept {
  std::byte* at = bytes.data();
  std::memset(at, 0, kControlRecordBytes);
  store_little(at + 8, static_cast<std::uint32_t>(record.kind));
  store_little(at + 12, record.socket);
  store_little(at + 16, record.position);
  write_prelude(at, kControlRecordBytes, kControlMagic);
}

std::optional<ControlRecord> decode_control_record(std::span<const std::byte, kControlRecordBytes> bytes) noexcept {
  const std::byte* at = bytes.data();
  if (!has_prelude(at, kControlRecordBytes, kControlMagic)) return {};
  const auto kind = load_little<std::uint32_t>(at + 8);
  if (kind < 1 || kind > 3) return {};
  return ControlRecord{static_cast<ControlRecord::Kind>(kind), load_little<std::uint32_t>(at + 12),
                       load_little<std::uint64_t>(at + 16)};
}

}  // namespace shoal::tcp
