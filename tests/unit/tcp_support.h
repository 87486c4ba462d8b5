// Groups of TCP transports in one process, for the tests of transports/tcp.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "transports/tcp/tcp.h"

namespace shoal::tcp_test {

using Clock = std::chrono::steady_clock;

inline constexpr auto kTimeLimit = std::chrono::seconds(60);

inline const Key kKey = key_from_text("the key of the tests");

inline TcpOptions options_of(int rank, int size) {
  TcpOptions options;
  options.key = kKey;
  options.interface_or_address = "127.0.0.1";
  options.job_id = 0x5eed5eed;
  options.rank = rank;
  options.size = size;
  return options;
}

/// One rank: its transport and its links, the link to rank r at links[r] (null at its own place).
struct End {
  std::unique_ptr<Transport> transport;
  std::vector<std::unique_ptr<Link>> links;
  Status status;

  Link& link(int peer) { return *links[static_cast<std::size_t>(peer)]; }
  /// Transport first or links first: both orders of destruction are allowed.
  void destroy() {
    transport.reset();
    links.clear();
  }
};

/// As ranks do, which are processes of their own: who leaves does so for a moment with an eye on the other.
inline void destroy_together(std::vector<End>& ends) {
  std::vector<std::thread> threads;
  for (End& end : ends) threads.emplace_back([&end] { end.destroy(); });
  for (std::thread& thread : threads) thread.join();
}

inline void connect(End& end, int rank, const std::vector<std::string>& addresses, std::chrono::milliseconds limit) {
  std::vector<int> peers;
  std::vector<std::string> where;
  for (int peer = 0; peer < static_cast<int>(addresses.size()); ++peer) {
    if (peer == rank) continue;
    peers.push_back(peer);
    where.push_back(addresses[static_cast<std::size_t>(peer)]);
  }
  auto links = end.transport->connect(peers, where, Clock::now() + limit);
  if (!links.ok()) {
    end.status = links.status();
    return;
  }
  end.links.resize(addresses.size());
  for (auto& link : *links) {
    const auto peer = static_cast<std::size_t>(link->peer());
    end.links[peer] = std::move(link);
  }
}

/// Connects one end for each of `options`, each from a thread of its own. Look at End::status for what came of it.
inline std::vector<End> make_group(const std::vector<TcpOptions>& options, std::chrono::milliseconds limit = kTimeLimit) {
  std::vector<End> ends(options.size());
  std::vector<std::string> addresses;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    auto transport = make_tcp_transport(options[i]);
    if (!transport.ok()) {
      ends[i].status = transport.status();
      return ends;
    }
    ends[i].transport = std::move(*transport);
    addresses.push_back(ends[i].transport->address());
  }
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    threads.emplace_back([&, i] { connect(ends[i], static_cast<int>(i), addresses, limit); });
  }
  for (std::thread& thread : threads) thread.join();
  return ends;
}

inline std::vector<TcpOptions> options_for(int size, int sockets = 2, std::size_t tile_bytes = 128 << 10) {
  std::vector<TcpOptions> options;
  for (int rank = 0; rank < size; ++rank) {
    options.push_back(options_of(rank, size));
    options.back().sockets_per_peer = sockets;
    options.back().tile_bytes = tile_bytes;
    options.back().lend_from_bytes = 1;
  }
  return options;
}

/// Drives `end` until done() holds; blocks in poll() when nothing moves. False after kTimeLimit.
template <typename Done>
bool drive(End& end, Done&& done) {
  const auto until = Clock::now() + kTimeLimit;
  while (!done()) {
    if (end.transport->progress()) continue;
    if (done()) return true;
    if (Clock::now() >= until) return false;
    if (!end.transport->prepare_wait()) continue;
    pollfd waiting{end.transport->wait_fd(), POLLIN, 0};
    end.transport->finish_wait(::poll(&waiting, 1, 1000) != 0);
  }
  return true;
}

inline std::vector<std::byte> random_bytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, 8);
  }
  for (; i < count; ++i) bytes[i] = static_cast<std::byte>(random());
  return bytes;
}

/// Floats as gradients have them, but for some runs of random bytes: of either some tiles consist.
inline std::vector<std::byte> gradient_bytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, 1e-3F);
  std::vector<std::byte> bytes = random_bytes(count, seed);
  for (std::size_t at = 0; at + 4 <= count; at += 4) {
    if (at >> 17 & 1) at += std::size_t{1} << 17;  // 128 KiB that stay as they are
    if (at + 4 > count) break;
    const float value = normal(random);
    std::memcpy(bytes.data() + at, &value, sizeof value);
  }
  return bytes;
}

/// Sends `message` as tiles of at most `tile` bytes, with the tile's number in header.edge, and waits until all counted as
/// sent.
inline bool send_message(End& end, int peer, std::span<const std::byte> message, std::size_t tile) {
  Link& link = end.link(peer);
  const std::uint64_t before = link.sent_tiles();
  std::uint64_t tiles = 0;
  for (std::size_t at = 0; at < message.size(); at += tile, ++tiles) {
    const auto part = message.subspan(at, std::min(tile, message.size() - at));
    TileHeader header{7, 8, static_cast<std::uint32_t>(tiles), static_cast<std::uint32_t>(part.size()), at};
    const auto start = [&] { return tiles % 2 == 0 ? link.try_send(header, part) : link.try_lend(header, part); };
    if (!drive(end, [&] { return start() || !link.status().ok(); })) return false;
    if (!link.status().ok()) return false;
  }
  return drive(end, [&] { return link.sent_tiles() == before + tiles || !link.status().ok(); }) && link.status().ok();
}

/// Receives what send_message sends; false where anything is missing, out of order or changed.
inline bool receive_message(End& end, int peer, std::span<const std::byte> expected, std::size_t tile) {
  Link& link = end.link(peer);
  std::uint32_t number = 0;
  for (std::size_t at = 0; at < expected.size(); ++number) {
    const Arrival* arrival = nullptr;
    if (!drive(end, [&] { return (arrival = link.peek()) != nullptr || !link.status().ok(); }) || arrival == nullptr)
      return false;
    const auto part = expected.subspan(at, std::min(tile, expected.size() - at));
    if (arrival->header != TileHeader{7, 8, number, static_cast<std::uint32_t>(part.size()), at}) return false;
    if (arrival->data.size() != part.size() || std::memcmp(arrival->data.data(), part.data(), part.size()) != 0) return false;
    at += part.size();
    link.release();
  }
  return true;
}

/// Takes what comes until the link has failed, and expects it to name the peer.
inline void expect_failed(End& end, int peer) {
  Link& link = end.link(peer);
  EXPECT_TRUE(drive(end, [&] {
    while (link.peek() != nullptr) link.release();
    return !link.status().ok();
  }));
  EXPECT_EQ(link.status().code(), StatusCode::peer_failed);
  EXPECT_NE(link.status().message().find("rank " + std::to_string(peer)), std::string::npos) << link.status().to_string();
  EXPECT_FALSE(link.try_send({}, {}));
}

/// Sends `there` from rank 1 and `back` from rank 0 at the same time, from memory that is scribbled over as it becomes free.
/// What was wrong; empty where nothing was.
inline std::string exchange_messages(std::vector<End>& ends, std::span<const std::byte> there, std::span<const std::byte> back,
                                     std::size_t tile) {
  std::array<std::string, 2> wrong;
  const auto rank = [&](std::size_t own) {
    std::vector<std::byte> out = own == 1 ? std::vector(there.begin(), there.end()) : std::vector(back.begin(), back.end());
    const auto in = own == 1 ? back : there;
    Link& link = ends[own].link(1 - static_cast<int>(own));
    const std::uint64_t before = link.sent_tiles();
    std::uint64_t tiles = 0;
    std::uint64_t freed = 0;
    std::size_t sent = 0;
    std::size_t received = 0;
    const bool done = drive(ends[own], [&] {
      while (sent < out.size()) {
        const auto part = std::span(out).subspan(sent, std::min(tile, out.size() - sent));
        const TileHeader header{1, 2, static_cast<std::uint32_t>(tiles), static_cast<std::uint32_t>(part.size()), sent};
        if (!(tiles % 3 == 0 ? link.try_send(header, part) : link.try_lend(header, part))) break;
        sent += part.size();
        ++tiles;
      }
      for (; freed < link.sent_tiles() - before; ++freed) {
        std::fill_n(out.begin() + static_cast<std::ptrdiff_t>(freed * tile), std::min(tile, out.size() - freed * tile),
                    std::byte{0xee});
      }
      while (const Arrival* arrival = link.peek()) {
        const auto due = in.subspan(received, std::min(tile, in.size() - received));
        if (arrival->header.offset_bytes != received || arrival->data.size() != due.size() ||
            std::memcmp(arrival->data.data(), due.data(), due.size()) != 0) {
          wrong[own] = "rank " + std::to_string(own) + " got something else at byte " + std::to_string(received);
        }
        received += arrival->data.size();
        link.release();
      }
      const bool whole = sent == out.size() && received >= in.size() && link.sent_tiles() == before + tiles;
      return whole || !wrong[own].empty() || !link.status().ok();
    });
    if (wrong[own].empty() && (!done || !link.status().ok()))
      wrong[own] = "rank " + std::to_string(own) + ": " + link.status().to_string();
  };
  // Until both are done: whoever is through early still has to see to what the other lost.
  std::atomic<int> through = 0;
  const auto stay = [&](std::size_t own) {
    rank(own);
    ++through;
    while (through < 2) {
      if (ends[own].transport->progress() || !ends[own].transport->prepare_wait()) continue;
      pollfd waiting{ends[own].transport->wait_fd(), POLLIN, 0};
      ends[own].transport->finish_wait(::poll(&waiting, 1, 5) > 0);
    }
  };
  std::thread other(stay, 1);
  stay(0);
  other.join();
  return wrong[0] + wrong[1];
}

}  // namespace shoal::tcp_test
