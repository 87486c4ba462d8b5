// Records of the TCP transport.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "transports/tcp/address.h"
#include "transports/tcp/wire.h"

using namespace shoal;  // NOLINT(google-build-using-namespace): the whole file is one function

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Key key = key_from_text("nobody's");
  tcp::HelloRecord record{};
  std::memcpy(record.data(), data, std::min(size, record.size()));
  if (const auto hello = tcp::decode_hello(record)) {
    const auto again = tcp::decode_hello(tcp::encode(*hello, key));
    if (again != hello) std::abort();
  }
  if (tcp::is_proven(record, key)) std::abort();  // an HMAC cannot be guessed

  std::array<std::byte, tcp::kFrameHeaderBytes> header{};
  std::memcpy(header.data(), data, std::min(size, header.size()));
  constexpr std::size_t kMost = 65536;
  const auto frame = tcp::decode_frame(header, kMost);
  if (frame && (frame->tile.size_bytes > kMost || frame->wire_bytes() > frame->tile.size_bytes)) std::abort();
  if (!frame && tcp::describe_bad_frame(header, kMost).empty()) std::abort();

  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto addresses = tcp::split_addresses(text);
  if (addresses.ok()) {
    if (addresses->empty() || addresses->size() > tcp::kMaxAdvertised) std::abort();
    const auto again = tcp::split_addresses(tcp::join_addresses(*addresses));
    if (!again.ok() || again->size() != addresses->size()) std::abort();
  }
  return 0;
}
