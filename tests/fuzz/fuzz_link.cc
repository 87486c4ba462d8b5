// Frames on the sockets of a TCP link. The input is a list of frames: socket, header and payload. Headers have a valid checksum
// unless the input changes it, so that later checks are reached. A payload is zeros; packed ones may be changed by the input.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "transports/tcp/link.h"
#include "transports/tcp/packing.h"
#include "transports/tcp/reactor.h"

using namespace shoal;  // NOLINT(google-build-using-namespace): the whole file is one function

namespace {

constexpr std::size_t kTileBytes = 4096;
constexpr std::size_t kSockets = 2;

class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}
  std::uint8_t byte() {
    if (rest_.empty()) return 0;
    const std::uint8_t value = rest_.front();
    rest_ = rest_.subspan(1);
    return value;
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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  auto reactor = tcp::Reactor::make();
  if (!reactor.ok()) std::abort();
  std::vector<tcp::Connection> ours;
  std::vector<Descriptor> theirs;
  for (std::size_t i = 0; i <= kSockets; ++i) {  // the last one carries control records
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) != 0) std::abort();
    ours.push_back({Descriptor(ends[0]), {}});
    theirs.emplace_back(ends[1]);
  }
  auto link = tcp::TcpLink::make(*reactor, 1, "fuzz", std::move(ours), {kTileBytes, 2, 1, true, false, 0, true});
  if (!link.ok()) std::abort();
  Bytes input(data, size);
  std::uint64_t position = 0;
  const std::vector<std::byte> tile(kTileBytes);
  while (!input.empty()) {
    const std::uint8_t choice = input.byte();
    if ((choice & 3) == 3) {
      // A tile of this end, and a control record about it that may be valid.
      const std::size_t bytes = input.byte() * 16U;
      static_cast<void>((*link)->try_send({0, 0, 0, static_cast<std::uint32_t>(bytes), 0}, std::span(tile).first(bytes)));
      std::array<std::byte, tcp::kControlRecordBytes> record{};
      using Kind = tcp::ControlRecord::Kind;
      const Kind last = (choice & 16) != 0 ? Kind::flush : Kind::close_notice;
      tcp::encode({(choice & 128) != 0 ? last : Kind::acknowledge, input.byte(), input.byte()}, record);
      const std::size_t sent = (choice & 8) != 0 ? record.size() : input.byte() % record.size();
      static_cast<void>(!::send(theirs.back().get(), record.data(), sent, MSG_NOSIGNAL | MSG_DONTWAIT));
    }
    const Descriptor& socket = theirs[choice % kSockets];
    std::vector<std::byte> out;
    if ((choice & 4) != 0) {
      const auto raw = input.some(64);
      for (const std::uint8_t byte : raw) out.push_back(std::byte{byte});
    } else {
      tcp::FrameHeader header;
      header.position = (choice & 8) != 0 ? position++ : input.byte();
      header.tile.edge = input.byte();
      header.tile.size_bytes = (choice & 16) != 0 ? input.byte() : input.byte() * 257U;
      header.tile.offset_bytes = input.byte();
      const std::size_t payload = std::min<std::size_t>(header.tile.size_bytes, 3 * kTileBytes);
      std::vector<std::byte> packed(payload);
      if (header.tile.offset_bytes >= 128) {
        header.packed_bytes = static_cast<std::uint32_t>(tcp::pack(std::vector<std::byte>(payload), packed));
        if ((header.tile.offset_bytes & 1) != 0) header.packed_bytes += input.byte() - 128U;
        packed.resize(std::min(header.wire_bytes(), 3 * kTileBytes));
        if (const std::size_t place = input.byte() * 16U; place < packed.size()) packed[place] ^= std::byte{input.byte()};
      }
      out.resize(tcp::frame_bytes(packed.size()));
      std::ranges::copy(packed, out.begin() + static_cast<std::ptrdiff_t>(tcp::payload_offset(packed.size())));
      std::array<std::byte, tcp::kFrameHeaderBytes> bytes{};
      tcp::encode(header, std::vector<std::byte>(payload), bytes);
      std::memcpy(out.data(), bytes.data(), bytes.size());
      if ((choice & 32) != 0) out.resize(input.byte());  // truncated or too long
    }
    static_cast<void>(!::send(socket.get(), out.data(), out.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
    if ((choice & 64) != 0) ::shutdown(socket.get(), SHUT_WR);
    while ((*reactor)->progress()) {
    }
    while (const Arrival* arrival = (*link)->peek()) {
      if (arrival->data.size() > kTileBytes || arrival->data.size() != arrival->header.size_bytes) std::abort();
      if ((choice & 128) != 0) break;  // not released
      (*link)->release();
    }
  }
  return 0;
}
