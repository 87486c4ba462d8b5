// Copying payloads, and CRC-32C (Castagnoli), their check sum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace shoal {

/// The CRC-32C of `data`, as RFC 3720 defines it; of "123456789" it is 0xe3069283. By the processor's instructions where it
/// has them. Thread rule: any thread.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> data) noexcept;

/// As memcpy, at its usual speed also where both lie almost alike within their pages: there some processors' string
/// instructions, which it uses, take twenty times as long.
void copy(std::byte* target, std::span<const std::byte> data) noexcept;
/// Copies `data` to `target`, which has room for it, and returns its CRC-32C: each byte is fetched from memory once.
std::uint32_t copy_with_crc32c(std::byte* target, std::span<const std::byte> data) noexcept;

/// The processor has instructions for it.
[[nodiscard]] bool crc32c_is_fast() noexcept;

/// The same by tables alone, for processors without them.
[[nodiscard]] std::uint32_t crc32c_portable(std::span<const std::byte> data) noexcept;

}  // namespace shoal
