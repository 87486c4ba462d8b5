// Copying payloads, and their checksum, CRC-32C (Castagnoli).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

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

}  // namespace shoal
