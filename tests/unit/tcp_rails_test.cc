// Links over several networks: which way each socket takes, how tiles are shared, and a network that falls silent.
#include <gmock/gmock.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/mentions.h"
#include "tests/unit/tcp_support.h"
#include "transports/tcp/address.h"
#include "transports/tcp/drain_rate.h"
#include "transports/tcp/repairs.h"

namespace shoal::tcp_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using tcp::DrainRate;
using testing::Mentions;
using ::testing::Not;

// By rank: its end of each rail. All of 127.0.0.0/8 is this host.
const std::vector<std::vector<std::string>> kRails = {{"127.0.0.2", "127.0.0.3"}, {"127.0.0.4", "127.0.0.5"}};

std::string host_of(const tcp::SocketAddress& address) {
  const std::string text = address.to_string();
  return text.substr(0, text.rfind(':'));
}

/// Calls `use` for every socket of this process that has an IPv4 address, with that and the one of its other end, which is
/// empty for a listener.
void for_each_socket(const std::function<void(int socket, const std::string& here, const std::string& there)>& use) {
  std::vector<int> numbers;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    numbers.push_back(std::stoi(entry.path().filename().string()));
  }
  for (const int number : numbers) {
    tcp::SocketAddress here;
    tcp::SocketAddress there;
    socklen_t length = sizeof here.storage;
    if (::getsockname(number, reinterpret_cast<sockaddr*>(&here.storage), &length) != 0 || here.family() != AF_INET) continue;
    length = sizeof there.storage;
    const bool connected = ::getpeername(number, reinterpret_cast<sockaddr*>(&there.storage), &length) == 0;
    use(number, host_of(here), connected ? host_of(there) : "");
  }
}

/// From now on nothing that is sent to that address arrives: neither data nor acknowledgements nor new connections.
void silence(const std::string& host) {
  int silenced = 0;
  for_each_socket([&](int socket, const std::string& here, const std::string&) {
    if (here != host) return;
    sock_filter nothing = {BPF_RET | BPF_K, 0, 0, 0};
    const sock_fprog program = {1, &nothing};
    EXPECT_EQ(::setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
    ++silenced;
  });
  EXPECT_GT(silenced, 0) << "nothing has the address " << host;
}

/// How many connections lead from each address of rank 1, which connects, to which of rank 0.
std::map<std::pair<std::string, std::string>, int> connections() {
  std::map<std::pair<std::string, std::string>, int> found;
  for_each_socket([&](int, const std::string& here, const std::string& there) {
    if (there == kRails[0][0] || there == kRails[0][1]) ++found[{here, there}];
  });
  return found;
}

std::vector<TcpOptions> rail_options(int sockets, std::size_t tile_bytes) {
  auto options = options_for(2, sockets, tile_bytes);
  for (std::size_t rank = 0; rank < 2; ++rank) options[rank].rails = kRails[rank];
  return options;
}

void destroy(std::vector<End>& ends) {
  for (End& end : ends) end.destroy();
}

TEST(TcpRails, SocketsAreDistributedOverTheRails) {
  auto ends = make_group(rail_options(4, 32 << 10));
  for (const End& end : ends) ASSERT_TRUE(end.status.ok()) << end.status.to_string();
  // Four for tiles, and the fifth for words.
  const std::map<std::pair<std::string, std::string>, int> expected = {{{"127.0.0.4", "127.0.0.2"}, 3},
                                                                       {{"127.0.0.5", "127.0.0.3"}, 2}};
  EXPECT_EQ(connections(), expected);
  const auto message = random_bytes(8 << 20, 21);
  EXPECT_EQ(exchange_messages(ends, message, message, 32 << 10), "");
  destroy(ends);
}

class TcpSilentRail : public ::testing::TestWithParam<int> {};

// With the rail 0 the words fall silent as well.
TEST_P(TcpSilentRail, IsAbandonedWhileOthersContinue) {
  const auto rail = static_cast<std::size_t>(GetParam());
  auto ends = make_group(rail_options(2, 32 << 10));
  for (const End& end : ends) ASSERT_TRUE(end.status.ok()) << end.status.to_string();
  const auto there = random_bytes(4 << 20, 22);
  const auto back = random_bytes(3 << 20, 23);
  ASSERT_EQ(exchange_messages(ends, there, back, 32 << 10), "");
  const auto before = tcp::repairs().connections;
  for (const auto& own : kRails) silence(own[rail]);
  ::testing::internal::CaptureStderr();
  const auto start = Clock::now();
  EXPECT_EQ(exchange_messages(ends, there, back, 32 << 10), "");
  const auto took = std::chrono::duration<double>(Clock::now() - start).count();
  const std::string said = ::testing::internal::GetCapturedStderr();
  std::printf("%.1f s; %s", took, said.c_str());
  EXPECT_LT(took, 9) << "a host that has vanished is given up after ten seconds";
  EXPECT_THAT(said, Mentions("socket " + std::to_string(rail)));
  EXPECT_THAT(said, ::testing::ContainsRegex("rank [01] .*[0-9.]+ s")) << "for how long it has been silent";
  EXPECT_GT(tcp::repairs().connections, before);
  for (const auto& [from_to, count] : connections()) {
    EXPECT_THAT(from_to.second, Not(kRails[0][rail])) << count << " connections still lead to the rail that is silent";
  }
  EXPECT_EQ(exchange_messages(ends, back, there, 32 << 10), "");
  destroy(ends);
}

INSTANTIATE_TEST_SUITE_P(Rails, TcpSilentRail, ::testing::Values(0, 1));

TEST(TcpRails, RailSilentFromTheStartIsAbandonedAndNamed) {
  std::vector<End> ends(2);
  std::vector<std::string> addresses;
  const auto options = rail_options(2, 32 << 10);
  for (std::size_t i = 0; i < 2; ++i) {
    ends[i].transport = std::move(*make_tcp_transport(options[i]));
    addresses.push_back(ends[i].transport->address());
  }
  silence(kRails[0][1]);
  ::testing::internal::CaptureStderr();
  std::thread other([&] { connect(ends[1], 1, addresses, kTimeLimit); });
  connect(ends[0], 0, addresses, kTimeLimit);
  other.join();
  const std::string said = ::testing::internal::GetCapturedStderr();
  for (const End& end : ends) ASSERT_TRUE(end.status.ok()) << end.status.to_string();
  EXPECT_THAT(said, Mentions("socket 1", "rank 0", "rail 0", "127.0.0.2", "rail 1"));
  const auto message = random_bytes(1 << 20, 24);
  EXPECT_EQ(exchange_messages(ends, message, message, 32 << 10), "");
  destroy(ends);
}

// The peer is busy and has not taken the new connections; then their network is gone.
TEST(TcpRails, RailSilentDuringHandshakeIsAbandoned) {
  auto options = rail_options(2, 32 << 10);
  for (TcpOptions& one : options) one.lost_after = std::chrono::seconds(5);
  auto ends = make_group(options);
  for (const End& end : ends) ASSERT_TRUE(end.status.ok()) << end.status.to_string();
  for_each_socket([](int socket, const std::string&, const std::string& there) {
    if (there == kRails[0][0]) ::shutdown(socket, SHUT_RDWR);
  });
  const Link& link = ends[1].link(0);
  const auto drive_for = [&](milliseconds time) {
    const auto until = Clock::now() + time;
    EXPECT_TRUE(drive(ends[1], [&] { return Clock::now() >= until || !link.status().ok(); }));
  };
  drive_for(milliseconds(300));
  ASSERT_EQ((connections()[{kRails[1][0], kRails[0][0]}]), 2) << "greeted";
  for (const auto& own : kRails) silence(own[0]);
  drive_for(milliseconds(7000));
  ASSERT_TRUE(link.status().ok()) << link.status().to_string();
  EXPECT_EQ((connections()[{kRails[1][1], kRails[0][1]}]), 3);
  const auto message = random_bytes(1 << 20, 25);
  EXPECT_EQ(exchange_messages(ends, message, message, 32 << 10), "");
  destroy(ends);
}

TEST(TcpDrainRate, IsMeasuredWhileTheSocketHasBacklog) {
  DrainRate rate;
  DrainRate::Clock::time_point now{milliseconds(1000)};
  std::uint64_t drained = 0;
  rate.update(now, drained, 0);
  EXPECT_EQ(rate.bytes_per_us(), 0);
  // 100 bytes in a microsecond, looked at every millisecond.
  for (int i = 0; i < 100; ++i) rate.update(now += milliseconds(1), drained += 100'000, 300'000);
  EXPECT_NEAR(rate.bytes_per_us(), 100, 1);
  // Little is asked of it: that says nothing.
  for (int i = 0; i < 100; ++i) {
    rate.update(now += milliseconds(10), drained += 10'000, 0);
    rate.update(now += microseconds(100), drained, 10'000);
  }
  EXPECT_NEAR(rate.bytes_per_us(), 100, 1);
  // It has become slower.
  rate.update(now, drained, 0);
  for (int i = 0; i < 100; ++i) rate.update(now += milliseconds(1), drained += 50'000, 300'000);
  EXPECT_NEAR(rate.bytes_per_us(), 50, 1);
}

// It is given no more before that has gone, and would be taken for as fast as the others for good.
TEST(TcpDrainRate, IsKnownAfterOneTile) {
  DrainRate rate;
  DrainRate::Clock::time_point now{milliseconds(1000)};
  constexpr std::uint64_t kTile = 256 << 10;
  rate.update(now, 0, 0);
  for (std::uint64_t drained = 0; drained < kTile; drained += 25'000)
    rate.update(now += milliseconds(5), drained, kTile - drained);
  EXPECT_NEAR(rate.bytes_per_us(), 5, 0.1);
}

}  // namespace
}  // namespace shoal::tcp_test
