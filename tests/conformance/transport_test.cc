// The contract of transport.h for every transport; each test is one of its sentences.
#include "transports/transport.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <time.h>

#include <array>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <tuple>

#include "tests/conformance/group.h"
#include "tests/conformance/transport_kinds.h"
#include "transports/shm/arena.h"

namespace shoal::conformance {
namespace {

using Clock = std::chrono::steady_clock;

#ifdef SHOAL_SANITIZED
constexpr int kSlowdown = 10;
constexpr int kTilesUnderLoad = 4'000;
#else
constexpr int kSlowdown = 1;
constexpr int kTilesUnderLoad = 10'000;
#endif

/// tests/long sets the tiles for each rank in the tests under load, and runs groups of all sizes.
const char* long_run_tiles() {
  static const char* const tiles = std::getenv("SHOAL_CONFORMANCE_TILES");
  return tiles;
}
bool is_long_run() { return long_run_tiles() != nullptr; }
int tiles_under_load() { return is_long_run() ? std::atoi(long_run_tiles()) : kTilesUnderLoad; }

std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 31)) * 0x7fb5d329728ea185;
  value = (value ^ (value >> 27)) * 0x81dadef4bc2dd44d;
  return value ^ (value >> 33);
}

/// The `index`-th tile from `from` to `to`. Header, size and bytes depend on these alone, so the receiver knows what to
/// expect.
class Tile {
 public:
  Tile(int from, int to, std::uint32_t index, std::size_t size_bytes)
      : seed_(mix(static_cast<std::uint64_t>(from) << 48 ^ static_cast<std::uint64_t>(to) << 40 ^ index)), size_(size_bytes) {
    header_ = {static_cast<std::uint32_t>(from), index, static_cast<std::uint32_t>(seed_),
               static_cast<std::uint32_t>(size_bytes), mix(seed_)};
  }
  /// A size that is usually below 300 bytes, sometimes zero, sometimes the largest, and sometimes anything between.
  static Tile random_size(int from, int to, std::uint32_t index, std::size_t max_bytes) {
    const std::uint64_t draw = mix(mix(static_cast<std::uint64_t>(from * 64 + to)) ^ index);
    const std::uint64_t kind = draw % 64;
    const std::size_t size = kind == 0   ? max_bytes
                             : kind == 1 ? 0
                             : kind == 2 ? (draw >> 8) % (max_bytes + 1)
                                         : (draw >> 8) % 300;
    return {from, to, index, std::min(size, max_bytes)};
  }

  [[nodiscard]] const TileHeader& header() const { return header_; }
  [[nodiscard]] std::size_t size() const { return size_; }
  void fill(std::byte* memory) const {
    for (std::size_t i = 0; i < size_; i += 8) {
      const std::uint64_t word = word_at(i);
      std::memcpy(memory + i, &word, std::min<std::size_t>(8, size_ - i));
    }
  }
  [[nodiscard]] bool equals(const Arrival& arrival) const {
    if (!(arrival.header == header_) || arrival.data.size() != size_) return false;
    for (std::size_t i = 0; i < size_; i += 8) {
      const std::uint64_t word = word_at(i);
      if (std::memcmp(arrival.data.data() + i, &word, std::min<std::size_t>(8, size_ - i)) != 0) return false;
    }
    return true;
  }

 private:
  [[nodiscard]] std::uint64_t word_at(std::size_t offset) const {
    const std::uint64_t word = (seed_ + offset) * 0x9e3779b97f4a7c15;
    // Half of the payloads look like floats, which some transports pack.
    return seed_ % 2 == 0 ? word : (word & 0x80ffffff80ffffff) | 0x3f0000003f000000;
  }

  std::uint64_t seed_;
  std::size_t size_;
  TileHeader header_;
};

/// Whether the kind under test sends payloads from memory that the peers can read in place.
bool payloads_are_shared();

/// Ordinary memory, or memory that the peers can read in place.
template <typename T>
struct PayloadAllocator {
  using value_type = T;
  PayloadAllocator() = default;
  template <typename Other>
  explicit PayloadAllocator(const PayloadAllocator<Other>&) {}
  T* allocate(std::size_t count) {
    if (!payloads_are_shared()) return static_cast<T*>(::operator new(count * sizeof(T)));
    return static_cast<T*>(shm::Arena::instance()->allocate(count * sizeof(T)).value());
  }
  void deallocate(T* memory, std::size_t) {
    if (payloads_are_shared()) {
      EXPECT_TRUE(shm::Arena::instance()->free(memory).ok());
    } else {
      ::operator delete(memory);
    }
  }
  bool operator==(const PayloadAllocator&) const = default;
};
using Payload = std::vector<std::byte, PayloadAllocator<std::byte>>;

/// Memory for tiles in flight to one peer: each buffer stays unchanged until sent_tiles() frees it, and is then overwritten.
class SendBuffers {
 public:
  explicit SendBuffers(Link& link, int buffers = 3) : link_(link), memory_(static_cast<std::size_t>(buffers)) {
    for (auto& one : memory_) one.resize(link.max_tile_bytes());
  }

  /// Starts sending; false where the link or the buffers have no room.
  bool try_send(const Tile& tile) {
    overwrite_freed();
    if (accepted_ - freed_ == memory_.size()) return false;
    Payload& buffer = memory_[accepted_ % memory_.size()];
    tile.fill(buffer.data());
    const std::span data = std::span(buffer).first(tile.size());
    // Where peers read payloads in place, all tiles are lent; elsewhere every other one.
    const bool lend = payloads_are_shared() || accepted_ % 2 == 1;
    if (!(lend ? link_.try_lend(tile.header(), data) : link_.try_send(tile.header(), data))) return false;
    ++accepted_;
    return true;
  }
  /// Whether all memory is free again.
  bool done() {
    overwrite_freed();
    return freed_ == accepted_;
  }

 private:
  void overwrite_freed() {
    const std::uint64_t sent = link_.sent_tiles();
    EXPECT_LE(sent, accepted_);
    EXPECT_GE(sent, freed_) << "sent_tiles() went backwards";
    for (; freed_ < std::min(sent, accepted_); ++freed_) {
      Payload& buffer = memory_[freed_ % memory_.size()];
      std::fill_n(buffer.begin(), std::min<std::size_t>(buffer.size(), 512), std::byte{0xee});
    }
  }

  Link& link_;
  std::vector<Payload> memory_;
  std::uint64_t accepted_ = 0;
  std::uint64_t freed_ = 0;
};

Payload bytes_of(const Tile& tile) {
  Payload result(std::max<std::size_t>(tile.size(), 1));
  tile.fill(result.data());
  result.resize(tile.size());
  return result;
}

/// Spins or sleeps for 0 .. 200 us, so that tiles reach a rank at every stage of going to sleep.
void pause_randomly(std::mt19937& random) {
  const unsigned draw = random() % 8;
  if (draw < 3) return;
  const auto pause = std::chrono::microseconds(random() % (draw == 7 ? 200 : 20));
  if (draw == 3) {
    const timespec time{0, static_cast<long>(pause.count()) * 1000};
    ::nanosleep(&time, nullptr);
    return;
  }
  for (const auto end = Clock::now() + pause; Clock::now() < end;) {
  }
}

class TransportConformance : public ::testing::TestWithParam<std::tuple<TransportKind, int>> {
 protected:
  void SetUp() override {
    if (!kind().unavailable.empty()) GTEST_SKIP() << kind().unavailable;
#ifdef SHOAL_TSAN
    if (kind().processes) GTEST_SKIP() << "ThreadSanitizer sees nothing between processes";
#endif
  }

 public:
  [[nodiscard]] static const TransportKind& kind() { return std::get<0>(GetParam()); }

 protected:
  [[nodiscard]] static int size() { return std::get<1>(GetParam()); }
  static void run(const std::function<void(Rank&)>& body, GroupOptions options = {}) {
    run_group(kind(), size(), body, options);
  }

 private:
  Watchdog watchdog_{std::chrono::seconds(120)};
};

bool payloads_are_shared() { return TransportConformance::kind().shared; }

TEST_P(TransportConformance, LinksLeadToEveryPeer) {
  run([](Rank& rank) {
    EXPECT_EQ(rank.transport().address(), rank.transport().address());
    std::vector<std::byte> largest(sizeof(std::uint64_t));
    for (const int peer : rank.peers()) {
      Link& link = rank.link(peer);
      EXPECT_EQ(link.peer(), peer);
      EXPECT_GT(link.max_tile_bytes(), 0U);
      EXPECT_TRUE(link.status().ok());
      EXPECT_EQ(link.peek(), nullptr);
      EXPECT_EQ(link.sent_tiles(), 0U);
    }
    rank.barrier();
    const std::uint64_t own = rank.link(rank.peers()[0]).max_tile_bytes();
    std::memcpy(largest.data(), &own, sizeof(own));
    for (const int peer : rank.peers()) {
      ASSERT_TRUE(rank.send(peer, {0, 0, 0, sizeof(own), 0}, largest));
    }
    for (const int peer : rank.peers()) {
      const Arrival* arrival = rank.receive(peer);
      ASSERT_NE(arrival, nullptr);
      std::uint64_t theirs = 0;
      ASSERT_EQ(arrival->data.size(), sizeof(theirs));
      std::memcpy(&theirs, arrival->data.data(), sizeof(theirs));
      EXPECT_EQ(theirs, rank.link(peer).max_tile_bytes());
      rank.link(peer).release();
    }
    ASSERT_TRUE(rank.until([&] {
      for (const int peer : rank.peers()) {
        if (rank.link(peer).sent_tiles() != 1) return false;
      }
      return true;
    }));
  });
}

TEST_P(TransportConformance, TilesOfCriticalSizesArriveUnchanged) {
  run([](Rank& rank) {
    const std::size_t max = rank.link(rank.peers()[0]).max_tile_bytes();
    std::vector<std::size_t> sizes{0,   1,   7,   8,    31,   32,   33,      40,  63, 64,  65, 96,
                                   127, 128, 129, 4095, 4096, 4097, max - 1, max, 0,  max, 1};
    std::erase_if(sizes, [max](std::size_t size) { return size > max; });
    std::vector<SendBuffers> out;
    for (const int peer : rank.peers()) out.emplace_back(rank.link(peer));
    std::vector<std::size_t> sent(rank.peers().size()), received(rank.peers().size());
    ASSERT_TRUE(rank.until([&] {
      bool done = true;
      for (std::size_t p = 0; p < rank.peers().size(); ++p) {
        const int peer = rank.peers()[p];
        while (sent[p] < sizes.size() &&
               out[p].try_send(Tile(rank.rank(), peer, static_cast<std::uint32_t>(sent[p]), sizes[sent[p]]))) {
          ++sent[p];
        }
        while (const Arrival* arrival = received[p] < sizes.size() ? rank.link(peer).peek() : nullptr) {
          const Tile expected(peer, rank.rank(), static_cast<std::uint32_t>(received[p]), sizes[received[p]]);
          EXPECT_TRUE(expected.equals(*arrival))
              << "tile " << received[p] << " of " << sizes[received[p]] << " bytes from " << peer;
          rank.link(peer).release();
          ++received[p];
        }
        done &= sent[p] == sizes.size() && received[p] == sizes.size() && out[p].done();
      }
      return done;
    }));
    rank.barrier();
    for (int i = 0; i < 100; ++i) rank.transport().progress();
    for (const int peer : rank.peers()) EXPECT_EQ(rank.link(peer).peek(), nullptr) << "a tile arrived twice";
  });
}

TEST_P(TransportConformance, AllPairsTrafficKeepsOrderAndBytes) {
  const int tiles = tiles_under_load() / kind().slowness / (size() - 1);
  run([tiles](Rank& rank) {
    const std::vector<int> peers = rank.peers();
    std::vector<SendBuffers> out;
    for (const int peer : peers) out.emplace_back(rank.link(peer));
    std::vector<int> sent(peers.size()), received(peers.size());
    bool intact = true;
    ASSERT_TRUE(rank.until([&] {
      bool done = true;
      for (std::size_t p = 0; p < peers.size(); ++p) {
        Link& link = rank.link(peers[p]);
        while (sent[p] < tiles && out[p].try_send(Tile::random_size(rank.rank(), peers[p], static_cast<std::uint32_t>(sent[p]),
                                                                    link.max_tile_bytes()))) {
          ++sent[p];
        }
        for (const Arrival* arrival; intact && (arrival = link.peek()) != nullptr; link.release()) {
          intact = received[p] < tiles &&
                   Tile::random_size(peers[p], rank.rank(), static_cast<std::uint32_t>(received[p]), link.max_tile_bytes())
                       .equals(*arrival);
          EXPECT_TRUE(intact) << "tile " << received[p] << " from rank " << peers[p] << " is lost, doubled or damaged";
          ++received[p];
        }
        done &= sent[p] == tiles && received[p] == tiles && out[p].done();
      }
      return done || !intact;
    }));
  });
}

TEST_P(TransportConformance, TwoLargestTilesFitWithoutTheReceiver) {
  run([](Rank& rank) {
    std::vector<Payload> alive;  // until sent
    if (rank.rank() == 0) {
      for (const int peer : rank.peers()) {
        Link& link = rank.link(peer);
        for (std::uint32_t i = 0; i < 2; ++i) {
          const Tile tile(0, peer, i, link.max_tile_bytes());
          alive.push_back(bytes_of(tile));
          bool accepted = link.try_send(tile.header(), alive.back());
          for (int again = 0; !accepted && kind().refuses && again < 100; ++again)
            accepted = link.try_send(tile.header(), alive.back());
          EXPECT_TRUE(accepted) << "tile " << i;
        }
      }
    }
    rank.barrier();
    if (rank.rank() != 0) {
      for (std::uint32_t i = 0; i < 2; ++i) {
        const Arrival* arrival = rank.receive(0);
        ASSERT_NE(arrival, nullptr);
        EXPECT_TRUE(Tile(0, rank.rank(), i, rank.link(0).max_tile_bytes()).equals(*arrival));
        rank.link(0).release();
      }
    } else {
      ASSERT_TRUE(rank.until([&] {
        for (const int peer : rank.peers()) {
          if (rank.link(peer).sent_tiles() != 2) return false;
        }
        return true;
      }));
    }
  });
}

TEST_P(TransportConformance, FullLinkResumesAfterRelease) {
  run([](Rank& rank) {
    const int last = rank.size() - 1;
    if (rank.rank() == 0) {
      Link& link = rank.link(last);
      // All tiles carry the same payload, which stays unchanged to the end: the link may hold many tiles before it is full.
      const Tile tile(0, last, 0, link.max_tile_bytes());
      const Payload data = bytes_of(tile);
      std::uint32_t accepted = 0;
      for (int refused = 0; refused < 1000 && accepted < 10'000;) {
        TileHeader header = tile.header();
        header.sequence = accepted;
        if (link.try_send(header, data)) {
          ++accepted;
          refused = 0;
        } else {
          ++refused;
          rank.transport().progress();
        }
      }
      EXPECT_GE(accepted, 2U);
      EXPECT_LT(accepted, 10'000U) << "the link never filled";
      TileHeader header = tile.header();
      header.sequence = accepted;
      rank.barrier();  // now the receiver starts
      ASSERT_TRUE(rank.send(last, header, data));
      header.sequence = ~0U;
      ASSERT_TRUE(rank.send(last, header, data));
      ASSERT_TRUE(rank.until([&] { return link.sent_tiles() == accepted + 2; }));
    } else {
      rank.barrier();
      if (rank.rank() != last) return;
      const Tile tile(0, last, 0, rank.link(0).max_tile_bytes());
      for (std::uint32_t next = 0;; ++next) {
        const Arrival* arrival = rank.receive(0);
        ASSERT_NE(arrival, nullptr);
        const bool end = arrival->header.sequence == ~0U;
        if (!end) {
          ASSERT_EQ(arrival->header.sequence, next);
        }
        ASSERT_EQ(arrival->data.size(), tile.size());
        rank.link(0).release();
        if (end) break;
      }
    }
  });
}

TEST_P(TransportConformance, AbandonedLentTilesArrive) {
  if (kind().shared && kind().transport == "shm") GTEST_SKIP() << "peers read the tiles in place";
  run([](Rank& rank) {
    const int last = rank.size() - 1;
    if (rank.rank() != 0 && rank.rank() != last) return rank.barrier();
    Link& link = rank.link(rank.rank() == 0 ? last : 0);
    const auto tile = [&](std::uint32_t i) { return Tile(0, last, i, link.max_tile_bytes()); };
    if (rank.rank() == last) {
      rank.barrier();
      for (std::uint32_t i = 0;; ++i) {
        const Arrival* arrival = rank.receive(0);
        ASSERT_NE(arrival, nullptr);
        if (arrival->data.empty()) return link.release();
        ASSERT_TRUE(tile(i).equals(*arrival)) << "tile " << i;
        link.release();
      }
    }
    std::vector<Payload> memory;
    for (int refused = 0; refused < 1000 && memory.size() < 100;) {
      const Tile next = tile(static_cast<std::uint32_t>(memory.size()));
      Payload data = bytes_of(next);
      if (link.try_lend(next.header(), data)) {
        memory.push_back(std::move(data));
        refused = 0;
      } else {
        ++refused;
        rank.transport().progress();
      }
    }
    ASSERT_GE(memory.size(), 2U);
    link.keep_copies();
    for (Payload& data : memory) std::fill(data.begin(), data.end(), std::byte{0xee});
    rank.barrier();  // now the receiver starts
    ASSERT_TRUE(rank.send(last, {}, {}));
    ASSERT_TRUE(rank.until([&] { return link.sent_tiles() == memory.size() + 1; }));
  });
}

TEST_P(TransportConformance, PeekReturnsTheSameTileUntilRelease) {
  run([](Rank& rank) {
    const int next = (rank.rank() + 1) % rank.size();
    const int previous = (rank.rank() + rank.size() - 1) % rank.size();
    const Tile first(rank.rank(), next, 0, 1000), second(rank.rank(), next, 1, 1000);
    const Payload data[2] = {bytes_of(first), bytes_of(second)};
    ASSERT_TRUE(rank.send(next, first.header(), data[0]));
    Link& in = rank.link(previous);
    const Arrival* arrival = rank.receive(previous);
    ASSERT_NE(arrival, nullptr);
    const std::byte* where = arrival->data.data();
    // A tile that try_send() has accepted may still wait for room, and no thread drives the transport during barrier().
    ASSERT_TRUE(rank.until([&] { return rank.link(next).sent_tiles() >= 1; }));
    rank.barrier();
    ASSERT_TRUE(rank.send(next, second.header(), data[1]));
    rank.barrier();
    for (int i = 0; i < 100; ++i) {
      rank.transport().progress();
      const Arrival* again = in.peek();
      ASSERT_EQ(again, arrival);
      ASSERT_EQ(again->data.data(), where);
      ASSERT_TRUE(Tile(previous, rank.rank(), 0, 1000).equals(*again));
    }
    in.release();
    arrival = rank.receive(previous);
    ASSERT_NE(arrival, nullptr);
    EXPECT_TRUE(Tile(previous, rank.rank(), 1, 1000).equals(*arrival));
    in.release();
    EXPECT_EQ(in.peek(), nullptr);
    ASSERT_TRUE(rank.until([&] { return rank.link(next).sent_tiles() == 2; }));
  });
}

TEST_P(TransportConformance, ProgressReportsWhetherBytesMoved) {
  run([](Rank& rank) {
    // Drives the transport until the traffic of connecting has ended.
    for (int quiet = 0; quiet < 1000; ++quiet) {
      if (rank.transport().progress()) quiet = 0;
    }
    rank.barrier();
    for (int i = 0; i < 1000; ++i) EXPECT_FALSE(rank.transport().progress()) << "nothing is in flight";
    rank.barrier();
    const Tile tile(0, 1, 0, 100);
    const Payload data = bytes_of(tile);
    if (rank.rank() == 0) {
      ASSERT_TRUE(rank.send(1, tile.header(), data));
      rank.barrier();
      ASSERT_TRUE(rank.until([&] { return rank.link(1).sent_tiles() == 1; }));
    } else {
      rank.barrier();
      if (rank.rank() != 1) return;
      const auto deadline = Clock::now() + std::chrono::seconds(30);
      bool moved = false;
      while (!moved && Clock::now() < deadline) moved = rank.transport().progress();
      EXPECT_TRUE(moved) << "a tile has arrived";
      ASSERT_TRUE(rank.until([&] { return rank.link(0).peek() != nullptr; }));
      rank.link(0).release();
    }
  });
}

TEST_P(TransportConformance, BlockedReceiverIsAlwaysWoken) {
  const int rounds = tiles_under_load() / 33 / std::min(kind().slowness, 3) / size();
  run([rounds](Rank& rank) {
    // A token travels around the ring. All ranks but one sleep, and each rank pauses before it sleeps and before it sends.
    const int next = (rank.rank() + 1) % rank.size();
    const int previous = (rank.rank() + rank.size() - 1) % rank.size();
    std::mt19937 random(static_cast<unsigned>(rank.rank()) + 1);
    for (int i = 0; i < rounds; ++i) {
      const auto index = static_cast<std::uint32_t>(i);
      const Tile tile(rank.rank(), next, index, random() % 2 == 0 ? 8 : 3000);
      const Payload data = bytes_of(tile);
      if (rank.rank() == 0) {
        ASSERT_TRUE(rank.send(next, tile.header(), data));
      }
      pause_randomly(random);
      const Arrival* arrival = rank.receive(previous);
      ASSERT_NE(arrival, nullptr);
      ASSERT_EQ(arrival->header.sequence, index);
      pause_randomly(random);
      rank.link(previous).release();
      if (rank.rank() != 0) {
        ASSERT_TRUE(rank.send(next, tile.header(), data));
      }
      ASSERT_TRUE(rank.until([&] { return rank.link(next).sent_tiles() == index + 1; }));
    }
  });
}

TEST_P(TransportConformance, BlockedSenderIsAlwaysWoken) {
  const auto tiles = static_cast<std::uint32_t>(tiles_under_load() / 16);
  run([tiles](Rank& rank) {
    // Rank 0 receives from all ranks, slowly and in bursts; the other ranks send the largest tiles, so that they block for
    // room.
    std::mt19937 random(static_cast<unsigned>(rank.rank()) + 11);
    if (rank.rank() == 0) {
      const std::uint32_t each = tiles / static_cast<std::uint32_t>(rank.size() - 1);
      for (std::uint32_t i = 0; i < each; ++i) {
        for (const int peer : rank.peers()) {
          const Arrival* arrival = rank.receive(peer);
          ASSERT_NE(arrival, nullptr);
          ASSERT_EQ(arrival->header.sequence, i);
          pause_randomly(random);
          rank.link(peer).release();
        }
      }
    } else {
      Link& link = rank.link(0);
      const std::uint32_t each = tiles / static_cast<std::uint32_t>(rank.size() - 1);
      const Tile tile(rank.rank(), 0, 0, link.max_tile_bytes());
      const Payload data = bytes_of(tile);
      for (std::uint32_t i = 0; i < each; ++i) {
        TileHeader header = tile.header();
        header.sequence = i;
        ASSERT_TRUE(rank.send(0, header, data));
        if (random() % 16 == 0) pause_randomly(random);
      }
      ASSERT_TRUE(rank.until([&] { return link.sent_tiles() == each; }));
    }
  });
}

TEST_P(TransportConformance, MemoryUseIsConstantUnderLoad) {
  run([](Rank& rank) {
    const std::size_t before = rank.transport().memory_bytes();
    EXPECT_GE(before, rank.link(rank.peers()[0]).max_tile_bytes());
    const int next = (rank.rank() + 1) % rank.size();
    const int previous = (rank.rank() + rank.size() - 1) % rank.size();
    SendBuffers out(rank.link(next));
    std::uint32_t sent = 0, received = 0;
    ASSERT_TRUE(rank.until([&] {
      while (sent < 200 && out.try_send(Tile(rank.rank(), next, sent, rank.link(next).max_tile_bytes()))) ++sent;
      while (rank.link(previous).peek() != nullptr) {
        rank.link(previous).release();
        ++received;
      }
      return sent == 200 && received == 200 && out.done();
    }));
    EXPECT_EQ(rank.transport().memory_bytes(), before);
  });
}

/// Whether a message that mentions ranks contains this number.
bool names_rank(const std::string& message, int rank) {
  const std::string number = std::to_string(rank);
  const auto digit = [&](std::size_t i) {
    return i < message.size() && std::isdigit(static_cast<unsigned char>(message[i])) != 0;
  };
  for (std::size_t at = message.find("rank"); (at = message.find(number, at)) != std::string::npos; ++at) {
    if (!digit(at - 1) && !digit(at + number.size())) return true;
  }
  return false;
}

TEST_P(TransportConformance, MissingPeerIsNamedByTheDeadline) {
  for (const int missing : {size() - 1, 0}) {
    run(
        [missing](Rank& rank) {
          if (rank.rank() != missing) {
            const auto start = Clock::now();
            const Status status = rank.connect(start + std::chrono::milliseconds(300));
            const auto took = Clock::now() - start;
            EXPECT_FALSE(status.ok());
            EXPECT_TRUE(names_rank(status.message(), missing))
                << "rank " << missing << " is missing, but: " << status.to_string();
            EXPECT_LT(took, std::chrono::seconds(20));
            if (rank.size() == 2) {
              EXPECT_EQ(status.code(), StatusCode::timeout);
              EXPECT_GE(took, std::chrono::milliseconds(250)) << "returned before the deadline";
            }
          }
        },
        {.connect = false});
  }
}

// The caller may learn by other means that the missing peer has died: no connection breaks in that case.
TEST_P(TransportConformance, ConnectEndsWhenCallerReportsDeadPeer) {
  for (const int missing : {size() - 1, 0}) {
    run(
        [missing](Rank& rank) {
          if (rank.rank() == missing) return;
          int looks = 0;
          const auto look = [&] { return ++looks < 2 ? Status() : Status(StatusCode::peer_failed, "the peer has died"); };
          const auto start = Clock::now();
          const Status status = rank.connect({start + std::chrono::seconds(60), look});
          EXPECT_LT(Clock::now() - start, std::chrono::seconds(20));
          // With more than two ranks, the first rank that learns of it may close and so end the wait of the other one.
          if (rank.size() == 2) {
            EXPECT_EQ(looks, 2);
            EXPECT_EQ(status.code(), StatusCode::peer_failed);
            EXPECT_EQ(status.message(), "the peer has died");
          } else {
            EXPECT_FALSE(status.ok());
          }
        },
        {.connect = false});
  }
}

/// What a rank sees after rank 0 has ended in any way: the three tiles that rank 0 had sent, then a broken link.
void expect_three_tiles_then_failure(Rank& rank) {
  Link& link = rank.link(0);
  ASSERT_TRUE(rank.until([&] { return !link.status().ok(); }));
  EXPECT_EQ(link.status().code(), StatusCode::peer_failed);
  EXPECT_NE(link.status().message().find("rank 0"), std::string::npos) << link.status().to_string();
  for (std::uint32_t i = 0; i < 3; ++i) {
    const Arrival* arrival = link.peek();
    ASSERT_NE(arrival, nullptr) << "tile " << i << " was lost";
    EXPECT_TRUE(Tile(0, rank.rank(), i, 500).equals(*arrival));
    link.release();
  }
  EXPECT_EQ(link.peek(), nullptr);
  EXPECT_FALSE(link.try_send({}, {}));
}

void send_three_tiles(Rank& rank) {
  for (const int peer : rank.peers()) {
    SendBuffers out(rank.link(peer));
    for (std::uint32_t i = 0; i < 3; ++i) {
      ASSERT_TRUE(rank.until([&] { return out.try_send(Tile(0, peer, i, 500)); }));
    }
    ASSERT_TRUE(rank.until([&] { return out.done(); }));
  }
}

TEST_P(TransportConformance, TilesOutlivePeerThatClosed) {
  run([](Rank& rank) {
    if (rank.rank() == 0) {
      send_three_tiles(rank);
      rank.announce();
      rank.close();
      return;
    }
    ASSERT_NE(rank.receive(0), nullptr);
    rank.await_announcement();
    expect_three_tiles_then_failure(rank);
    // The other ranks can still exchange tiles.
    const std::byte data[4] = {};  // unchanged until sent_tiles() frees it
    for (const int peer : rank.peers()) {
      if (peer == 0) continue;
      ASSERT_TRUE(rank.send(peer, {0, 0, 0, 4, 0}, data));
    }
    for (const int peer : rank.peers()) {
      if (peer == 0) continue;
      ASSERT_NE(rank.receive(peer), nullptr);
      rank.link(peer).release();
      ASSERT_TRUE(rank.until([&] { return rank.link(peer).sent_tiles() == 1; }));
    }
  });
}

TEST_P(TransportConformance, TilesOutlivePeerThatDied) {
  if (!kind().processes) GTEST_SKIP() << "a thread cannot die alone";
  run(
      [](Rank& rank) {
        if (rank.rank() == 0) {
          send_three_tiles(rank);
          rank.announce();
          rank.die();
        }
        ASSERT_NE(rank.receive(0), nullptr);
        rank.await_announcement();
        expect_three_tiles_then_failure(rank);
      },
      {.barrier_at_end = false});
}

TEST_P(TransportConformance, WindowsAreSharedAndNotifyWakes) {
  const std::uint64_t rounds = static_cast<std::uint64_t>(1000 / kSlowdown);
  run([rounds](Rank& rank) {
    Transport& transport = rank.transport();
    const std::span<std::byte> own = transport.shared_window(rank.rank());
    for (int r = 0; r < rank.size(); ++r) {
      const std::span<std::byte> window = transport.shared_window(r);
      ASSERT_EQ(window.size(), own.size());
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(window.data()) % 64, 0U);
      for (const std::byte byte : window) ASSERT_EQ(byte, std::byte{0});
    }
    EXPECT_EQ(!own.empty(), kind().windows);
    rank.barrier();
    transport.notify_peers();
    if (own.empty()) return;

    // Each rank counts in its own window, and waits for all other ranks before its next count.
    std::mt19937 random(static_cast<unsigned>(rank.rank()) + 21);
    const auto word = [&](int r) {
      return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(transport.shared_window(r).data()));
    };
    std::vector<int> all_ranks(static_cast<std::size_t>(rank.size()));
    std::iota(all_ranks.begin(), all_ranks.end(), 0);
    const auto all_ranks_at = [&](std::uint64_t count) {
      for (int r = 0; r < rank.size(); ++r) {
        if (word(r).load(std::memory_order_acquire) < count) return false;
      }
      return true;
    };
    for (std::uint64_t i = 1; i <= rounds; ++i) {
      pause_randomly(random);
      // The last 8 bytes of the window are written before the count, so peers that see the count must see them.
      std::memcpy(own.data() + own.size() - sizeof(i), &i, sizeof(i));
      word(rank.rank()).store(i, std::memory_order_release);
      if (i % 2 == 0) {
        transport.notify_peers();
      } else {
        transport.notify(all_ranks);
      }
      pause_randomly(random);
      ASSERT_TRUE(rank.until_window([&] { return all_ranks_at(i); }));
      rank.barrier();
      for (int r = 0; r < rank.size(); ++r) {
        std::uint64_t value = 0;
        std::memcpy(&value, transport.shared_window(r).data() + own.size() - sizeof(value), sizeof(value));
        ASSERT_EQ(value, i);
      }
      rank.barrier();
    }
    for (int r = 0; r < rank.size(); ++r) EXPECT_EQ(word(r).load(), rounds);
  });
}

TEST_P(TransportConformance, NotifyWakesTheNamedRanksOnly) {
  run([](Rank& rank) {
    Transport& transport = rank.transport();
    if (!kind().windows) return;
    rank.barrier();
    const bool sleeps = rank.rank() != 0;
    if (sleeps) {
      while (!transport.prepare_wait()) {  // remaining traffic of connect()
        transport.finish_wait(true);
        transport.progress();
      }
    }
    rank.barrier();
    if (rank.rank() == 0) transport.notify(std::array{0, 1});
    rank.barrier();
    if (sleeps) {
      pollfd woken{transport.wait_fd(), POLLIN, 0};
      EXPECT_EQ(::poll(&woken, 1, 0), rank.rank() == 1 ? 1 : 0) << "rank " << rank.rank();
      transport.finish_wait(true);
    }
    rank.barrier();
  });
}

TEST_P(TransportConformance, AllRanksWriteCommonMemory) {
  run([](Rank& rank) {
    const std::span<std::byte> common = rank.transport().common_memory();
    EXPECT_EQ(!common.empty(), kind().windows);
    if (common.empty()) return;
    EXPECT_EQ(rank.transport().window_count(), rank.size());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(common.data()) % 64, 0U);
    ASSERT_EQ(common[0], std::byte{0});
    ASSERT_EQ(std::memcmp(common.data(), common.data() + 1, common.size() - 1), 0) << "not all zero";
    rank.barrier();
    // All ranks add to the last 8 bytes.
    std::atomic_ref word(*reinterpret_cast<std::uint64_t*>(common.data() + common.size() - sizeof(std::uint64_t)));
    for (int i = 0; i < 1000; ++i) word.fetch_add(static_cast<std::uint64_t>(rank.rank()) + 1);
    rank.barrier();
    EXPECT_EQ(word.load(), 1000U * static_cast<unsigned>(rank.size() * (rank.size() + 1) / 2));
  });
}

TEST_P(TransportConformance, UnknownRanksHaveNoWindow) {
  run([](Rank& rank) {
    EXPECT_TRUE(rank.transport().shared_window(-1).empty());
    EXPECT_TRUE(rank.transport().shared_window(rank.size()).empty());
  });
}

std::string test_name(const ::testing::TestParamInfo<std::tuple<TransportKind, int>>& info) {
  return std::get<0>(info.param).label + "_" + std::to_string(std::get<1>(info.param));
}

std::vector<std::tuple<TransportKind, int>> groups() {
  std::vector<std::tuple<TransportKind, int>> all;
  for (const TransportKind& kind : transport_kinds()) {
    for (const int size : kind.sizes) {
      if (size == 3 && kind.sizes.size() > 1 && !is_long_run()) continue;  // the smallest and the largest group suffice
      all.emplace_back(kind, size);
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, TransportConformance, ::testing::ValuesIn(groups()), test_name);

}  // namespace
}  // namespace shoal::conformance
