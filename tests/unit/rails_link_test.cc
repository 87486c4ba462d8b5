// Links over rails one property at a time: strangers, settings, one rail that dies, what no completion comes for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <future>
#include <thread>

#include "src/trust/refusals.h"
#include "tests/ofi/faulty_fabric.h"
#include "tests/ofi/memory_fabric.h"
#include "transports/ofi/ofi.h"
#include "transports/rails/wire.h"

namespace shoal::rails {
namespace {

using testing::Faults;
using testing::FaultState;
using testing::FaultyFabric;
using ::testing::HasSubstr;
using testing::MemoryFabric;
using testing::MemoryNetwork;
using testing::MemoryRailOptions;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Two ranks of one process over memory.
class Pair {
 public:
  explicit Pair(const MemoryRailOptions& rails = {}, const Faults& faults = {})
      : network(std::make_shared<MemoryNetwork>(rails)), state(std::make_shared<FaultState>(faults)) {
    for (int rank = 0; rank < 2; ++rank) {
      options[rank].rank = rank;
      options[rank].size = 2;
      options[rank].tile_bytes = 4096;
      options[rank].tiles_per_peer = 4;
      options[rank].stripe_bytes = 1024;
      options[rank].write_from_bytes = 1024;
      options[rank].fabric = std::make_shared<FaultyFabric>(std::make_shared<MemoryFabric>(network), state, rank);
    }
  }
  void open() {
    for (int rank = 0; rank < 2; ++rank) {
      auto made = make_ofi_transport(options[rank]);
      ASSERT_TRUE(made.ok()) << made.status().to_string();
      ends[rank] = std::move(*made);
    }
  }
  std::array<Status, 2> connect(milliseconds limit = seconds(30)) {
    std::array<std::future<Status>, 2> connecting;
    for (int rank = 0; rank < 2; ++rank) {
      connecting[static_cast<std::size_t>(rank)] = std::async(std::launch::async, [this, rank, limit] {
        const int peer = 1 - rank;
        const std::string address = ends[peer]->address();
        auto made = ends[rank]->connect({&peer, 1}, {&address, 1}, Clock::now() + limit);
        if (!made.ok()) return made.status();
        links[rank] = std::move(made->front());
        return Status();
      });
    }
    return {connecting[0].get(), connecting[1].get()};
  }
  void open_and_connect() {
    open();
    for (const Status& status : connect()) ASSERT_TRUE(status.ok()) << status.to_string();
    state->start();
  }
  /// False after a while.
  template <typename Done>
  bool until(Done done, milliseconds limit = seconds(30)) {
    const auto end = Clock::now() + limit;
    while (!done()) {
      if (Clock::now() > end) return false;
      for (auto& each : ends) {
        if (each != nullptr) each->progress();
      }
      std::this_thread::yield();
    }
    return true;
  }
  /// Sends `count` tiles from rank 0 to rank 1 and checks them.
  void send(int count, std::size_t bytes) {
    int sent = 0;
    int received = 0;
    std::vector<std::byte> data(bytes);
    const bool all = until([&] {
      if (sent < count) {
        std::fill(data.begin(), data.end(), static_cast<std::byte>(sent));
        sent +=
            links[0]->try_send({0, static_cast<std::uint32_t>(sent), 0, static_cast<std::uint32_t>(bytes), 0}, data) ? 1 : 0;
      }
      if (const Arrival* arrival = links[1]->peek()) {
        EXPECT_EQ(arrival->header.sequence, static_cast<std::uint32_t>(received));
        EXPECT_EQ(arrival->data.size(), bytes);
        for (const std::byte byte : arrival->data) EXPECT_EQ(byte, static_cast<std::byte>(received));
        links[1]->release();
        ++received;
      }
      return received == count || !links[0]->status().ok();
    });
    EXPECT_TRUE(all) << sent << " sent, " << received << " received";
    EXPECT_EQ(received, count) << links[0]->status().to_string();
  }
  ~Pair() {
    // Together: each waits a moment for the other's words.
    std::array<std::thread, 2> leaving;
    for (int rank = 0; rank < 2; ++rank) {
      leaving[static_cast<std::size_t>(rank)] = std::thread([this, rank] {
        links[rank].reset();
        ends[rank].reset();
      });
    }
    for (std::thread& each : leaving) each.join();
  }

  std::shared_ptr<MemoryNetwork> network;
  std::shared_ptr<FaultState> state;
  OfiOptions options[2];
  std::unique_ptr<Transport> ends[2];
  std::unique_ptr<Link> links[2];
};

/// Somebody on the same network who is no rank.
class Stranger {
 public:
  explicit Stranger(const std::shared_ptr<MemoryNetwork>& network) {
    auto rails = MemoryFabric(network).open({});
    rail_ = std::move(rails->front());
  }
  void send(std::uint64_t to, std::span<const std::byte> bytes) {
    const Piece piece{bytes.data(), bytes.size(), nullptr};
    EXPECT_EQ(rail_->post_send(operation_, to, {&piece, 1}), 0);
  }

 private:
  std::unique_ptr<Rail> rail_;
  Operation operation_;
};

TEST(RailsLink, AnotherKeyOpensNothing) {
  Pair pair;
  pair.options[1].key.bytes[0] = std::byte{1};
  pair.open();
  const auto before = refusals().count;
  const auto result = pair.connect(milliseconds(200));
  EXPECT_EQ(result[0].code(), StatusCode::timeout);
  EXPECT_THAT(result[0].message(), HasSubstr("rank 1 did not connect"));
  EXPECT_THAT(result[0].message(), HasSubstr("strangers"));
  EXPECT_GT(refusals().count, before);
}

TEST(RailsLink, OtherSettingsAreAnErrorThatSaysWhich) {
  Pair pair;
  pair.options[1].tiles_per_peer = 5;
  pair.open();
  const auto result = pair.connect(seconds(20));
  EXPECT_TRUE(result[0].code() == StatusCode::mismatch || result[1].code() == StatusCode::mismatch);
  const Status& said = result[0].code() == StatusCode::mismatch ? result[0] : result[1];
  EXPECT_THAT(said.message(), HasSubstr("tiles per peer"));
}

TEST(RailsLink, MessagesWithoutTheTokenAndJunkAreDroppedAndCounted) {
  Pair pair;
  pair.open_and_connect();
  Stranger stranger(pair.network);
  const auto before = refusals().count;
  Packet packet;
  packet.kind = PacketKind::goodbye;  // would end the link
  packet.token = 12345;
  std::array<std::byte, kPacketBytes> bytes{};
  encode(packet, bytes);
  stranger.send(0, bytes);
  stranger.send(0, std::vector<std::byte>(kPacketBytes, std::byte{7}));
  stranger.send(0, std::vector<std::byte>(3));
  stranger.send(0, {});
  Record record;
  record.job_id = pair.options[0].job_id;
  record.from_rank = 1;
  record.size = 2;
  Key wrong;
  wrong.bytes[3] = std::byte{9};
  stranger.send(0, encode(record, wrong));
  EXPECT_TRUE(pair.until([&] { return refusals().count >= before + 5; }));
  EXPECT_TRUE(pair.links[0]->status().ok());
  pair.send(10, 100);
}

TEST(RailsLink, ADeadRailIsLeftAndTheOthersGoOn) {
  for (const double silent : {0.0, 1.0}) {
    MemoryRailOptions rails;
    rails.rails = 2;
    Faults faults;
    faults.dying_rail = 0;
    faults.dying_rank = 0;
    faults.dies_after = 10;
    faults.silent = silent;
    Pair pair(rails, faults);
    pair.open_and_connect();
    ::testing::internal::CaptureStderr();
    pair.send(60, 4000);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(said, HasSubstr("rank 1 is no longer reached by rail 0")) << "silent: " << silent;
    EXPECT_THAT(said, HasSubstr("going on without it"));
    EXPECT_TRUE(pair.links[0]->status().ok());
  }
}

TEST(RailsLink, TheLastRailThatFailsEndsTheLinkAndNamesThePeer) {
  Faults faults;
  faults.dying_rail = 0;
  faults.dying_rank = 0;
  faults.dies_after = 3;
  faults.silent = 0;
  Pair pair({}, faults);
  pair.open_and_connect();
  const std::vector<std::byte> data(100);
  EXPECT_TRUE(pair.until([&] {
    static_cast<void>(pair.links[0]->try_send({0, 0, 0, 100, 0}, data));
    if (pair.links[1]->peek() != nullptr) pair.links[1]->release();
    return !pair.links[0]->status().ok();
  }));
  EXPECT_EQ(pair.links[0]->status().code(), StatusCode::peer_failed);
  EXPECT_THAT(pair.links[0]->status().message(), HasSubstr("rank 1"));
}

TEST(RailsLink, OptionsOutOfRangeAreRefused) {
  const auto complaint = [](auto change) {
    Pair pair;
    change(pair.options[0]);
    const auto made = make_ofi_transport(pair.options[0]);
    EXPECT_EQ(made.status().code(), StatusCode::invalid_argument);
    return made.status().message();
  };
  EXPECT_THAT(complaint([](OfiOptions& o) { o.rank = 2; }), HasSubstr("rank 2 of 2"));
  EXPECT_THAT(complaint([](OfiOptions& o) { o.tile_bytes = 100; }), HasSubstr("tiles of 100 bytes"));
  EXPECT_THAT(complaint([](OfiOptions& o) { o.tiles_per_peer = 65; }), HasSubstr("65 tiles per peer"));
  EXPECT_THAT(complaint([](OfiOptions& o) { o.stripe_bytes = 0; }), HasSubstr("stripes of 0 bytes"));
}

TEST(RailsLink, MessagesThatAreTooSmallForTheTilesAreRefused) {
  Faults faults;
  faults.max_message_bytes = 200;
  Pair pair({}, faults);
  const auto made = make_ofi_transport(pair.options[0]);
  EXPECT_EQ(made.status().code(), StatusCode::unsupported);
  EXPECT_THAT(made.status().message(), HasSubstr("messages of 200 bytes"));
}

}  // namespace
}  // namespace shoal::rails
