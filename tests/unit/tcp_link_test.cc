// Links of the TCP transport between threads of one process: order, integrity, waiting, memory, and the end of a peer.
#include "tests/unit/tcp_support.h"

#include <atomic>
#include <thread>

namespace shoal::tcp_test {
namespace {

struct Shape {
  int sockets;
  std::size_t tile_bytes;
  std::size_t message_bytes;
};

class TcpMessage : public testing::TestWithParam<Shape> {};

TEST_P(TcpMessage, ArrivesUnchangedBothWaysAtOnce) {
  const Shape shape = GetParam();
  auto ends = make_group(options_for(2, shape.sockets, shape.tile_bytes));
  ASSERT_TRUE(ends[0].status.ok()) << ends[0].status.to_string();
  ASSERT_TRUE(ends[1].status.ok()) << ends[1].status.to_string();
  EXPECT_EQ(ends[0].link(1).max_tile_bytes(), shape.tile_bytes);
  const auto message = random_bytes(shape.message_bytes, 1);
  bool arrived = false;
  std::thread receiver([&] {
    arrived = receive_message(ends[1], 0, message, shape.tile_bytes) && send_message(ends[1], 0, message, shape.tile_bytes);
  });
  EXPECT_TRUE(send_message(ends[0], 1, message, shape.tile_bytes));
  EXPECT_TRUE(receive_message(ends[0], 1, message, shape.tile_bytes));
  receiver.join();
  EXPECT_TRUE(arrived);
  EXPECT_GT(ends[0].transport->memory_bytes(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Shapes, TcpMessage,
                         testing::Values(Shape{1, 128 << 10, 64 << 20}, Shape{2, 128 << 10, 64 << 20}, Shape{4, 128 << 10, 32 << 20},
                                         Shape{16, 64 << 10, 16 << 20}, Shape{3, 1000, 3'000'001}, Shape{1, 64, 1'000'003},
                                         Shape{2, 4096, 4096 * 1000 + 1}, Shape{2, 16 << 20, 50'000'001}),
                         [](const auto& info) {
                           return std::to_string(info.param.sockets) + "x" + std::to_string(info.param.tile_bytes) + "_" +
                                  std::to_string(info.param.message_bytes);
                         });

}  // namespace
}  // namespace shoal::tcp_test
