// Packed payloads. The first two bytes are the claimed payload size. All bytes are also packed and unpacked.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

#include "transports/tcp/packing.h"

using namespace shoal;  // NOLINT(google-build-using-namespace): the whole file is one function

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> input(reinterpret_cast<const std::byte*>(data), size);
  if (size >= 2) {
    // Memory of exactly this size, so that a sanitizer detects writes beyond it.
    const std::size_t bytes = data[0] | std::size_t{data[1]} << 8;
    const auto payload = std::make_unique<std::byte[]>(bytes);
    if (tcp::unpack(input.subspan(2), {payload.get(), bytes}) && size - 2 < bytes / 2)
      std::abort();  // packing never halves a payload
  }
  const auto out = std::make_unique<std::byte[]>(size);
  const std::size_t packed = tcp::pack(input, {out.get(), size});
  if (packed == 0) return 0;
  if (packed >= size) std::abort();
  const auto exact = std::make_unique<std::byte[]>(packed);
  std::memcpy(exact.get(), out.get(), packed);
  std::memset(out.get(), 0xee, size);
  if (!tcp::unpack({exact.get(), packed}, {out.get(), size}) || std::memcmp(out.get(), data, size) != 0) std::abort();
  return 0;
}
