// The state of the handshake with a peer, and what the handshake shows of the peer.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/trust/proof.h"
#include "transports/rails/posted.h"
#include "transports/rails/wire.h"

namespace shoal::rails {

/// Driven by the Hub (handshake.cc).
struct Handshake {
  Nonce nonce{};
  std::optional<Nonce> peer_nonce;
  bool peer_answered = false;
  bool owes_answer = false;
  bool answer_sent = false;
  int tries = 0;
  std::chrono::steady_clock::time_point next_hello{};
  ShortMessage hello;
  ShortMessage answer;
  std::string last_error;
  [[nodiscard]] bool done() const noexcept { return peer_answered && answer_sent; }
  [[nodiscard]] bool authenticated() const noexcept { return peer_nonce.has_value(); }
};

/// The other end of a link.
struct RemoteEnd {
  int rank = 0;
  std::vector<std::uint64_t> addresses;  ///< by rail

  // Known once the peer is authenticated.
  std::uint16_t link = 0;  ///< number of the link at the peer
  PacketKey key_out;
  PacketKey key_in;
  std::array<Record::Slots, kMaxRails> slots{};  ///< where to write, by rail
  int pidfd = -1;                                ///< of a process on this host; the Hub owns it
  bool on_this_host = false;                     ///< as far as is known
};

}  // namespace shoal::rails
