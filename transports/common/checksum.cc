#include "transports/common/checksum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define SHOAL_CRC_TARGET __attribute__((target("sse4.2")))
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#define SHOAL_CRC_TARGET __attribute__((target("+crc")))
#endif

namespace shoal {
namespace {

// The polynomial with reversed bits, as in the register: bit 0 is the highest power.
constexpr std::uint32_t kPolynomial = 0x82f63b78;

using Table = std::array<std::uint32_t, 256>;

constexpr std::uint32_t shift_bit(std::uint32_t crc) { return (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0); }

// kTables[k][b]: the contribution of byte b when k more bytes follow it within a word of eight.
constexpr std::array<Table, 8> make_tables() {
  std::array<Table, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = shift_bit(crc);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t crc = tables[k - 1][byte];
      tables[k][byte] = (crc >> 8) ^ tables[0][crc & 0xff];
    }
  }
  return tables;
}
constexpr std::array<Table, 8> kTables = make_tables();

std::uint32_t update_portable(std::uint32_t crc, const std::byte* at, std::size_t bytes) noexcept {
  if constexpr (std::endian::native == std::endian::little) {
    for (; bytes >= 8; at += 8, bytes -= 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, at, sizeof word);
      word ^= crc;
      crc = 0;
      for (std::size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][(word >> (8 * k)) & 0xff];
    }
  }
  for (; bytes > 0; ++at, --bytes) crc = (crc >> 8) ^ kTables[0][(crc ^ std::to_integer<std::uint32_t>(*at)) & 0xff];
  return crc;
}

#ifdef SHOAL_CRC_TARGET

// The CRC instruction has a latency of three cycles and a throughput of one per cycle. So three strands of equal length run
// side by side. They are combined by moving the first two over the bytes of the strands behind them. Moving over a fixed
// number of zero bytes is linear in the register, so one table for each byte of the register does that.
using Shift = std::array<Table, 4>;

constexpr std::uint32_t multiply(const std::array<std::uint32_t, 32>& matrix, std::uint32_t vector) {
  std::uint32_t product = 0;
  for (std::size_t bit = 0; vector != 0; vector >>= 1, ++bit) product ^= (vector & 1) != 0 ? matrix[bit] : 0;
  return product;
}

// `bytes`: a power of two.
constexpr Shift make_shift(std::size_t bytes) {
  std::array<std::uint32_t, 32> matrix{};  // the image of each bit
  for (std::size_t bit = 0; bit < 32; ++bit) matrix[bit] = shift_bit(std::uint32_t{1} << bit);
  for (std::size_t bits = 1; bits < 8 * bytes; bits *= 2) {
    std::array<std::uint32_t, 32> square{};
    for (std::size_t bit = 0; bit < 32; ++bit) square[bit] = multiply(matrix, matrix[bit]);
    matrix = square;
  }
  Shift shift{};
  for (std::size_t k = 0; k < 4; ++k) {
    for (std::uint32_t byte = 0; byte < 256; ++byte) shift[k][byte] = multiply(matrix, byte << (8 * k));
  }
  return shift;
}

constexpr std::size_t kLongStrand = 1024;
constexpr std::size_t kShortStrand = 128;
constexpr Shift kLongShift = make_shift(kLongStrand);
constexpr Shift kShortShift = make_shift(kShortStrand);

std::uint32_t move_over(const Shift& shift, std::uint32_t crc) noexcept {
  return shift[0][crc & 0xff] ^ shift[1][(crc >> 8) & 0xff] ^ shift[2][(crc >> 16) & 0xff] ^ shift[3][crc >> 24];
}

SHOAL_CRC_TARGET inline std::uint64_t step(std::uint64_t crc, const std::byte* at) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, at, sizeof word);
#if defined(__x86_64__)
  return _mm_crc32_u64(crc, word);
#else
  return __crc32cd(static_cast<std::uint32_t>(crc), word);
#endif
}

template <std::size_t kStrand>
SHOAL_CRC_TARGET inline std::uint32_t three_strands(const Shift& shift, std::uint32_t crc, const std::byte* at) noexcept {
  std::uint64_t first = crc;
  std::uint64_t second = 0;
  std::uint64_t third = 0;
  for (std::size_t i = 0; i < kStrand; i += 8) {
    first = step(first, at + i);
    second = step(second, at + kStrand + i);
    third = step(third, at + 2 * kStrand + i);
  }
  const std::uint32_t both = move_over(shift, static_cast<std::uint32_t>(first)) ^ static_cast<std::uint32_t>(second);
  return move_over(shift, both) ^ static_cast<std::uint32_t>(third);
}

SHOAL_CRC_TARGET std::uint32_t update_fast(std::uint32_t crc, const std::byte* at, std::size_t bytes) noexcept {
  for (; bytes >= 3 * kLongStrand; at += 3 * kLongStrand, bytes -= 3 * kLongStrand)
    crc = three_strands<kLongStrand>(kLongShift, crc, at);
  for (; bytes >= 3 * kShortStrand; at += 3 * kShortStrand, bytes -= 3 * kShortStrand)
    crc = three_strands<kShortStrand>(kShortShift, crc, at);
  for (; bytes >= 8; at += 8, bytes -= 8) crc = static_cast<std::uint32_t>(step(crc, at));
  return update_portable(crc, at, bytes);
}

bool has_instructions() noexcept {
#if defined(__x86_64__)
  return __builtin_cpu_supports("sse4.2") != 0;
#else
  return (::getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#endif
}

#else
std::uint32_t update_fast(std::uint32_t crc, const std::byte* at, std::size_t bytes) noexcept {
  return update_portable(crc, at, bytes);
}
bool has_instructions() noexcept { return false; }
#endif

const bool kFast = has_instructions();

std::uint32_t update(std::uint32_t crc, const std::byte* at, std::size_t bytes) noexcept {
  return kFast ? update_fast(crc, at, bytes) : update_portable(crc, at, bytes);
}

// Bytes that have just been copied are still in the first-level cache; a whole number of strands.
constexpr std::size_t kCopyBytes = 12 << 10;
// memcpy uses vector moves below this size, and string instructions above. The string instructions of AMD's processors are
// slow (1.8 instead of 40 GB/s) where the target begins a few bytes further into its page than the source.
constexpr std::size_t kShortCopyBytes = 1536;

std::size_t copy_step(const std::byte* target, const std::byte* source) noexcept {
  const auto apart = (reinterpret_cast<std::uintptr_t>(target) - reinterpret_cast<std::uintptr_t>(source)) % 4096;
  return apart != 0 && apart < 64 ? kShortCopyBytes : kCopyBytes;
}

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> data) noexcept { return ~update(~0U, data.data(), data.size()); }

std::uint32_t copy_with_crc32c(std::byte* target, std::span<const std::byte> data) noexcept {
  std::uint32_t crc = ~0U;
  const std::size_t step = copy_step(target, data.data());
  for (std::size_t at = 0; at < data.size(); at += step) {
    const std::size_t bytes = std::min(step, data.size() - at);
    std::memcpy(target + at, data.data() + at, bytes);
    // Computed over the copy: if the source changes meanwhile, the checksum still matches the bytes that are sent.
    crc = update(crc, target + at, bytes);
  }
  return ~crc;
}

void copy(std::byte* target, std::span<const std::byte> data) noexcept {
  const std::size_t step = copy_step(target, data.data());
  if (step == kCopyBytes) {
    std::memcpy(target, data.data(), data.size());
    return;
  }
  for (std::size_t at = 0; at < data.size(); at += step)
    std::memcpy(target + at, data.data() + at, std::min(step, data.size() - at));
}

bool crc32c_is_fast() noexcept { return kFast; }

std::uint32_t crc32c_portable(std::span<const std::byte> data) noexcept {
  return ~update_portable(~0U, data.data(), data.size());
}

}  // namespace shoal
