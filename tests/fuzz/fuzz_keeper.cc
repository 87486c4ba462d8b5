// Messages between the keepers of two hosts on one connection, plain or encrypted. The input is a list of pieces: a valid
// message, or bytes as they are, on a connection that carries both.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "src/trust/proof.h"
#include "transports/tcp/keeper_stream.h"

using namespace shoal;  // NOLINT(google-build-using-namespace): the whole file is one function

namespace {

using Messages = std::vector<std::vector<std::byte>>;

tcp::Connection connection(int socket, bool connects, bool encrypted) {
  tcp::Connection made{Descriptor(socket), {}};
  if (encrypted) made.keys = derive_sealing_keys(key_from_text("a key for fuzzing"), "fuzz", "nonces", connects, false);
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) != 0) std::abort();
  const bool encrypted = (data[0] & 1) != 0;
  tcp::KeeperStream peer(connection(ends[0], true, encrypted));
  tcp::KeeperStream ours(connection(ends[1], false, encrypted));
  std::span<const std::uint8_t> rest(data + 1, size - 1);
  Messages sent;
  Messages arrived;
  bool all_valid = true;
  while (!rest.empty()) {
    const std::uint8_t choice = rest.front();
    rest = rest.subspan(1);
    const auto bytes = std::as_bytes(rest.first(std::min<std::size_t>(rest.size(), choice >> 2)));
    rest = rest.subspan(bytes.size());
    if ((choice & 1) != 0) {
      // Long ones, too: several reads, several records.
      std::vector<std::byte> message(std::min(bytes.size() * ((choice & 2) != 0 ? 300 : 1), tcp::KeeperStream::kMostBytes));
      std::ranges::copy(bytes.first(std::min(bytes.size(), message.size())), message.begin());
      peer.send(message);
      sent.push_back(std::move(message));
    } else if (!bytes.empty()) {
      all_valid = false;
      static_cast<void>(!::send(peer.descriptor(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
    }
    ours.receive(arrived);
    peer.flush();
  }
  do {
    peer.flush();
    ours.receive(arrived);
  } while (!peer.is_flushed() && !ours.has_ended());
  const auto too_long = [](const auto& message) { return message.size() > tcp::KeeperStream::kMostBytes; };
  if (std::ranges::any_of(arrived, too_long)) std::abort();
  if (all_valid && (ours.has_ended() || arrived != sent)) std::abort();
  // Encrypted, nothing that the peer has not sent arrives.
  if (encrypted && !std::ranges::equal(arrived, std::span(sent).first(std::min(sent.size(), arrived.size())))) std::abort();
  if (ours.has_ended() && ours.error() != 0) std::abort();  // malformed bytes are no error of the system
  return 0;
}
