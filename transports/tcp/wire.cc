#include "transports/tcp/wire.h"

#include <bit>
#include <cstring>

#include <fmt/format.h>

namespace shoal::tcp {
namespace {

constexpr std::uint32_t kHelloMagic = 0x4c4f4853;    // "SHOL" in the order of the bytes
constexpr std::uint32_t kFrameMagic = 0x454c4954;    // "TILE"
constexpr std::uint32_t kSummedMagic = 0x534c4954;   // "TILS": the payload has a checksum
constexpr std::uint32_t kControlMagic = 0x44524f57;  // "WORD"

template <typename T>
void store(std::byte* at, T value) noexcept {
  if constexpr (std::endian::native == std::endian::big) {
    for (std::size_t i = 0; i < sizeof(T); ++i) at[i] = static_cast<std::byte>(value >> (8 * i));
  } else {
    std::memcpy(at, &value, sizeof(T));
  }
}

template <typename T>
T load(const std::byte* at) noexcept {
  T value{};
  if constexpr (std::endian::native == std::endian::big) {
    for (std::size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(static_cast<T>(at[i]) << (8 * i));
  } else {
    std::memcpy(&value, at, sizeof(T));
  }
  return value;
}

// The checksum below does not cover the magic: one changed bit must not turn one kind into the other.
constexpr bool is_frame_magic(std::uint32_t magic) { return magic == kFrameMagic || magic == kSummedMagic; }
static_assert(std::popcount(kFrameMagic ^ kSummedMagic) >= 2);

// Folds whole 8-byte words. A changed bit always changes the sum of 64 bits, as each step is a bijection of the running
// value. It changes the 32 bits that are left of it except in one case in four billion. CRC-32C would detect up to five
// changed bits for certain, but a tile would take 1,744 instructions instead of 1,667 (tests/cost), even with the processor's
// CRC instructions.
std::uint32_t check_of(const std::byte* words, std::size_t count) noexcept {
  std::uint64_t sum = 0x9e3779b97f4a7c15;
  for (std::size_t i = 0; i < count; ++i) {
    sum = (sum ^ load<std::uint64_t>(words + 8 * i)) * 0xff51afd7ed558ccd;
    sum ^= sum >> 29;
  }
  return static_cast<std::uint32_t>(sum ^ (sum >> 32));
}

// All records start with magic and checksum; the checksum covers everything behind them.
constexpr std::size_t kPreludeBytes = 8;

std::uint32_t check_of_record(const std::byte* record, std::size_t bytes) noexcept {
  return check_of(record + kPreludeBytes, (bytes - kPreludeBytes) / 8);
}

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
  store(at + 8, hello.version);
  store(at + 10, static_cast<std::uint16_t>(hello.kind));
  store(at + 12, hello.size);
  store(at + 16, hello.job_id);
  store(at + 24, hello.from_rank);
  store(at + 28, hello.to_rank);
  store(at + 32, hello.sockets);
  store(at + 34, hello.socket_index);
  store(at + 36, hello.integrity);
  store(at + 38, hello.encryption);
  store(at + 40, hello.tile_bytes);
  // Either of the two: a side that is authenticated needs no nonce any more.
  if (has_nonce(hello.kind)) {
    std::memcpy(at + 48, hello.nonce.data(), hello.nonce.size());
  } else {
    store(at + 48, hello.received);
  }
  store(at, kHelloMagic);
  store(at + 4, check_of_record(at, kProvenBytes));
  const Proof proof = proof_of(record, key, before);
  std::memcpy(at + kProvenBytes, proof.data(), proof.size());
  return record;
}

bool is_proven(const HelloRecord& record, const Key& key, std::string_view before) noexcept {
  Proof claimed;
  std::memcpy(claimed.data(), record.data() + kProvenBytes, claimed.size());
  return same(claimed, proof_of(record, key, before));
}

std::optional<Hello> decode_hello(std::span<const std::byte, kHelloBytes> bytes) noexcept {
  const std::byte* at = bytes.data();
  if (load<std::uint32_t>(at) != kHelloMagic || load<std::uint32_t>(at + 4) != check_of_record(at, kProvenBytes)) return {};
  Hello hello;
  hello.version = load<std::uint16_t>(at + 8);
  const auto kind = load<std::uint16_t>(at + 10);
  if (kind < 1 || kind > 4) return {};
  hello.kind = static_cast<HelloKind>(kind);
  hello.size = load<std::uint32_t>(at + 12);
  hello.job_id = load<std::uint64_t>(at + 16);
  hello.from_rank = load<std::uint32_t>(at + 24);
  hello.to_rank = load<std::uint32_t>(at + 28);
  hello.sockets = load<std::uint16_t>(at + 32);
  hello.socket_index = load<std::uint16_t>(at + 34);
  hello.integrity = load<std::uint16_t>(at + 36);
  hello.encryption = load<std::uint16_t>(at + 38);
  hello.tile_bytes = load<std::uint32_t>(at + 40);
  if (has_nonce(hello.kind)) {
    std::memcpy(hello.nonce.data(), at + 48, hello.nonce.size());
  } else {
    hello.received = load<std::uint64_t>(at + 48);
  }
  return hello;
}

void encode(const FrameHeader& header, std::span<const std::byte> payload,
            std::span<std::byte, kFrameHeaderBytes> bytes) noexcept {
  std::byte* at = bytes.data();
  store(at + 8, header.position);
  store(at + 16, header.tile.communicator);
  store(at + 20, header.tile.sequence);
  store(at + 24, header.tile.edge);
  store(at + 28, header.tile.size_bytes);
  store(at + 32, header.tile.offset_bytes);
  static_assert(payload_offset(0) == 40);
  std::memset(at + 40, 0, kTinyBytes);
  const bool tiny = header.tile.size_bytes <= kTinyBytes;
  const bool summed = header.payload_sum && !tiny;
  if (tiny) {
    if (!payload.empty()) std::memcpy(at + 40, payload.data(), payload.size());
  } else {
    if (summed) store(at + 40, *header.payload_sum);
    store(at + 44, header.packed_bytes);
  }
  store(at, summed ? kSummedMagic : kFrameMagic);
  store(at + 4, check_of_record(at, kFrameHeaderBytes));
}

std::optional<FrameHeader> decode_frame(std::span<const std::byte, kFrameHeaderBytes> bytes,
                                        std::size_t max_payload_bytes) noexcept {
  const std::byte* at = bytes.data();
  const auto magic = load<std::uint32_t>(at);
  if (!is_frame_magic(magic) || load<std::uint32_t>(at + 4) != check_of_record(at, kFrameHeaderBytes)) return {};
  FrameHeader header;
  header.position = load<std::uint64_t>(at + 8);
  header.tile.communicator = load<std::uint32_t>(at + 16);
  header.tile.sequence = load<std::uint32_t>(at + 20);
  header.tile.edge = load<std::uint32_t>(at + 24);
  header.tile.size_bytes = load<std::uint32_t>(at + 28);
  header.tile.offset_bytes = load<std::uint64_t>(at + 32);
  if (header.tile.size_bytes > max_payload_bytes) return {};
  if (magic == kSummedMagic) header.payload_sum = load<std::uint32_t>(at + 40);
  if (header.tile.size_bytes <= kTinyBytes) return header.payload_sum ? std::nullopt : std::optional(header);
  header.packed_bytes = load<std::uint32_t>(at + 44);
  if (header.packed_bytes != 0 && (header.packed_bytes <= kTinyBytes || header.packed_bytes >= header.tile.size_bytes))
    return {};
  return header;
}

std::string describe_bad_frame(std::span<const std::byte, kFrameHeaderBytes> bytes, std::size_t max_payload_bytes) {
  const std::byte* at = bytes.data();
  const auto magic = load<std::uint32_t>(at);
  if (!is_frame_magic(magic)) return fmt::format("magic {:#010x} instead of {:#010x}", magic, kFrameMagic);
  if (load<std::uint32_t>(at + 4) != check_of_record(at, kFrameHeaderBytes)) return "the checksum is wrong";
  const auto size_bytes = load<std::uint32_t>(at + 28);
  if (size_bytes > max_payload_bytes)
    return fmt::format("a payload of {} bytes where at most {} are allowed", size_bytes, max_payload_bytes);
  return fmt::format("a payload of {} bytes, packed into {}", size_bytes, load<std::uint32_t>(at + 44));
}

void encode(const ControlRecord& record, std::span<std::byte, kControlRecordBytes> bytes) noexcept {
  std::byte* at = bytes.data();
  std::memset(at, 0, kControlRecordBytes);
  store(at + 8, static_cast<std::uint32_t>(record.kind));
  store(at + 12, record.socket);
  store(at + 16, record.position);
  store(at, kControlMagic);
  store(at + 4, check_of_record(at, kControlRecordBytes));
}

std::optional<ControlRecord> decode_control_record(std::span<const std::byte, kControlRecordBytes> bytes) noexcept {
  const std::byte* at = bytes.data();
  if (load<std::uint32_t>(at) != kControlMagic || load<std::uint32_t>(at + 4) != check_of_record(at, kControlRecordBytes))
    return {};
  const auto kind = load<std::uint32_t>(at + 8);
  if (kind < 1 || kind > 3) return {};
  return ControlRecord{static_cast<ControlRecord::Kind>(kind), load<std::uint32_t>(at + 12), load<std::uint64_t>(at + 16)};
}

}  // namespace shoal::tcp
