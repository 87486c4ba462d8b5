// A packed payload: one byte with the width of its elements (4 or 2), the bytes behind its last whole element, and blocks of
// 4096 bytes, the last one shorter. A block: the two bytes of its Window, the elements without their exponents, the codes of
// the exponents in groups of 64 (filled up at the end), and the escapes: exponents that have no code.
#include "transports/tcp/packing.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstdint>
#include <cstring>

#include "transports/tcp/packing_kernels.h"

namespace shoal::tcp {
namespace {

constexpr std::size_t kBlockBytes = 4096;  // of the payload
constexpr std::size_t kMostWords = kBlockBytes / 2;
constexpr std::size_t kWindowBytes = 2;
constexpr std::size_t kMostPercent = 94;
static_assert(kLeastPackable * (100 - kMostPercent) / 100 > kSlack);

// Samples. Of a block, about this many exponents decide on its window. Of a payload, this many elements in a row in each place.
constexpr std::size_t kBlockSamples = 64;
constexpr std::size_t kPlaceElements = 64;
constexpr std::size_t kPlaceEvery = 32 << 10;  // bytes
constexpr std::size_t kMostPlaces = 8;

std::size_t groups_of(std::size_t elements) { return (elements + kGroup - 1) / kGroup; }
/// Bytes of a block without its escapes.
std::size_t fixed_bytes(std::size_t elements, std::size_t element_bytes) {
  return kWindowBytes + elements * (element_bytes - 1) + groups_of(elements) * kGroupBytes;
}

struct Choice {
  Window window;
  std::size_t held = 0;  ///< number of sampled exponents that are not escapes
};

/// The window that holds most of every `step`-th exponent; at most 255 of them. It begins above 0, which is the exponent of
/// zeros: where there are many zeros, that exponent is `other`. Loops without branches, which become vectors.
Choice choose_window(const std::uint8_t* exponents, std::size_t count, std::size_t step) {
  std::array<std::uint8_t, 256 + kEscape> seen{};
  for (std::size_t i = 0; i < count; i += step) ++seen[exponents[i]];
  std::array<std::uint8_t, 256> held;  // by a window that begins at i + 1
  for (std::size_t i = 0; i < held.size(); ++i) {
    static_assert(kEscape == 6);
    held[i] = static_cast<std::uint8_t>(seen[i + 1] + seen[i + 2] + seen[i + 3] + seen[i + 4] + seen[i + 5] + seen[i + 6]);
  }
  const auto place_of_most = [](const auto& counts) {
    std::uint8_t most = 0;
    for (const std::uint8_t each : counts) most = std::max(most, each);
    return static_cast<const std::uint8_t*>(std::memchr(counts.data(), most, counts.size())) - counts.data();
  };
  const auto window = place_of_most(held);
  std::fill_n(seen.begin() + window + 1, kEscape, std::uint8_t{0});
  const auto other = place_of_most(seen);
  return {{static_cast<std::uint8_t>(window + 1), static_cast<std::uint8_t>(other)},
          std::size_t{held[static_cast<std::size_t>(window)]} + seen[static_cast<std::size_t>(other)]};
}

/// The elements that the payload looks like; null for neither.
const ElementKernels* choose_elements(const PackingKernels& kernels, std::span<const std::byte> payload) {
  const std::size_t places = std::min(kMostPlaces, 1 + payload.size() / kPlaceEvery);
  const ElementKernels* best = nullptr;
  // Saved bits of a million.
  std::int64_t most_saved = (100 - static_cast<std::int64_t>(kMostPercent)) * 10'000;
  for (const ElementKernels* elements : {&kernels.elements32, &kernels.elements16}) {
    std::int64_t held = 0;
    for (std::size_t place = 0; place < places; ++place) {
      const std::size_t at = (2 * place + 1) * payload.size() / (2 * places) / 64 * 64;
      std::array<std::uint8_t, kPlaceElements * 3 + 16> rests;
      std::array<std::uint8_t, kPlaceElements> exponents;
      elements->split(reinterpret_cast<const std::uint8_t*>(payload.data()) + at, kPlaceElements, rests.data(),
                      exponents.data());
      held += static_cast<std::int64_t>(choose_window(exponents.data(), exponents.size(), 1).held);
    }
    const auto looked_at = static_cast<std::int64_t>(places * kPlaceElements);
    const auto bits = static_cast<std::int64_t>(8 * elements->element_bytes);
    const std::int64_t saved = (8 * held - 3 * looked_at) * 1'000'000 / (looked_at * bits);
    if (saved > most_saved) most_saved = saved, best = elements;
  }
  return best;
}

}  // namespace

std::size_t pack(std::span<const std::byte> payload, std::span<std::byte> out) noexcept {
  assert(out.size() >= payload.size());
  if (payload.size() < kLeastPackable || std::endian::native == std::endian::big) return 0;
  const PackingKernels& kernels = packing_kernels();
  const ElementKernels* const elements = choose_elements(kernels, payload);
  if (elements == nullptr) return 0;
  const std::size_t element_bytes = elements->element_bytes;
  const std::size_t count = payload.size() / element_bytes;
  const std::size_t tail = payload.size() % element_bytes;
  const auto* from = reinterpret_cast<const std::uint8_t*>(payload.data());
  auto* const begin = reinterpret_cast<std::uint8_t*>(out.data());
  std::uint8_t* at = begin;
  const std::uint8_t* const end = begin + payload.size() * kMostPercent / 100;
  *at++ = static_cast<std::uint8_t>(element_bytes);
  at = std::copy_n(from + count * element_bytes, tail, at);
  const std::size_t block = kBlockBytes / element_bytes;
  std::array<std::uint8_t, kMostWords> exponents;
  for (std::size_t done = 0; done < count; done += block) {
    const std::size_t n = std::min(block, count - done);
    const std::size_t groups = groups_of(n);
    if (static_cast<std::size_t>(end - at) < fixed_bytes(n, element_bytes)) return 0;
    std::uint8_t* const rests = at + kWindowBytes;
    elements->split(from + done * element_bytes, n, rests, exponents.data());
    const Window window = choose_window(exponents.data(), n, n / kBlockSamples + 1).window;
    std::fill(exponents.begin() + static_cast<std::ptrdiff_t>(n),
              exponents.begin() + static_cast<std::ptrdiff_t>(groups * kGroup), window.base);
    at[0] = window.base;
    at[1] = window.other;
    at = kernels.encode(exponents.data(), groups, window, rests + n * (element_bytes - 1), end);
    if (at == nullptr) return 0;
  }
  return static_cast<std::size_t>(at - begin);
}

bool unpack(std::span<const std::byte> packed, std::span<std::byte> payload) noexcept {
  if (packed.empty() || std::endian::native == std::endian::big) return false;
  const PackingKernels& kernels = packing_kernels();
  const auto* at = reinterpret_cast<const std::uint8_t*>(packed.data());
  const std::uint8_t* const end = at + packed.size();
  const std::size_t element_bytes = *at++;
  if (element_bytes != kernels.elements32.element_bytes && element_bytes != kernels.elements16.element_bytes) return false;
  const ElementKernels& elements = element_bytes == kernels.elements32.element_bytes ? kernels.elements32 : kernels.elements16;
  const std::size_t count = payload.size() / element_bytes;
  const std::size_t tail = payload.size() % element_bytes;
  auto* const to = reinterpret_cast<std::uint8_t*>(payload.data());
  if (static_cast<std::size_t>(end - at) < tail) return false;
  std::copy_n(at, tail, to + count * element_bytes);
  at += tail;
  const std::size_t block = kBlockBytes / element_bytes;
  std::array<std::uint8_t, kMostWords> exponents;
  for (std::size_t done = 0; done < count; done += block) {
    const std::size_t n = std::min(block, count - done);
    const std::size_t groups = groups_of(n);
    if (static_cast<std::size_t>(end - at) < fixed_bytes(n, element_bytes)) return false;
    const Window window{at[0], at[1]};
    const std::uint8_t* const rests = at + kWindowBytes;
    at = kernels.decode(rests + n * (element_bytes - 1), end, groups, window, exponents.data());
    if (at == nullptr) return false;
    elements.join(rests, exponents.data(), n, to + done * element_bytes);
  }
  return at == end;
}

}  // namespace shoal::tcp
