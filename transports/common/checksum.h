// Copying payloads, and their checksum, CRC-32C (Castagnoli); the check of small records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/base/little_endian.h"

namespace shoal {

/// The CRC-32C of `data`, as RFC 3720 defines it; of "123456789" it is 0xe3069283. Uses the processor's CRC instructions
/// where there are any. Thread rule: any thread.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> data) noexcept;

/// As memcpy, but at full speed also where source and target have almost the same offset in their pages. There the string
/// instructions of some processors, which memcpy uses, take twenty times as long.
void copy(std::byte* target, std::span<const std::byte> data) noexcept;
/// Copies `data` to `target`, which has room for it, and returns its CRC-32C: each byte is fetched from memory once.
std::uint32_t copy_with_crc32c(std::byte* target, std::span<const std::byte> data) noexcept;

/// Whether the processor has CRC instructions.
[[nodiscard]] bool crc32c_is_fast() noexcept;

/// The same by tables alone, for processors without CRC instructions.
[[nodiscard]] std::uint32_t crc32c_portable(std::span<const std::byte> data) noexcept;

/// A record of tcp or rails starts with a magic number and the check of all bytes behind these two.
inline constexpr std::size_t kPreludeBytes = 8;

/// `bytes`: of the record, a multiple of 8. Folds whole 8-byte words. A changed bit always changes the sum of 64 bits, as each
/// step is a bijection of the running value. It changes the 32 bits that are left of it except in one case in four billion.
/// CRC-32C would detect up to five changed bits for certain, but a tile over TCP would take 1,744 instructions instead of 1,667
/// (tests/cost), even with the processor's CRC instructions.
inline std::uint32_t check_of_record(const std::byte* record, std::size_t bytes) noexcept {
  std::uint64_t sum = 0x9e3779b97f4a7c15;
  for (std::size_t i = kPreludeBytes; i < bytes; i += 8) {
    sum = (sum ^ load_little<std::uint64_t>(record + i)) * 0xff51afd7ed558ccd;
    sum ^= sum >> 29;
  }
  return static_cast<std::uint32_t>(sum ^ (sum >> 32));
}
/// Precondition: the bytes behind the prelude are written.
inline void write_prelude(std::byte* record, std::size_t bytes, std::uint32_t magic) noexcept {
  store_little(record, magic);
  store_little(record + 4, check_of_record(record, bytes));
}
[[nodiscard]] inline bool has_prelude(const std::byte* record, std::size_t bytes, std::uint32_t magic) noexcept {
  return load_little<std::uint32_t>(record) == magic &&
         load_little<std::uint32_t>(record + 4) == check_of_record(record, bytes);
}

}  // namespace shoal
