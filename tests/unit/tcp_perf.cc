// Compares the TCP transport with plain send and recv on the same loopback device, interleaved; prints medians and their
// ratios. A manual program: build the target tcp_perf and run it with nothing else on the machine. `tcp_perf packing` says how
// fast payloads are packed instead.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>

#include <fmt/format.h>

#include "tests/slack.h"
#include "tests/unit/tcp_support.h"
#include "transports/tcp/packing.h"

namespace shoal::tcp_test {
namespace {

constexpr std::size_t kTile = 128 << 10;
constexpr std::size_t kStream = std::size_t{512} << 20;
constexpr int kRounds = 20'000;
constexpr int kRepetitions = 7;

struct RawPair {
  int a = -1;
  int b = -1;
  RawPair() {
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* raw = reinterpret_cast<sockaddr*>(&address);
    a = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::bind(listener, raw, length) != 0 || ::listen(listener, 1) != 0 || ::getsockname(listener, raw, &length) != 0 ||
        ::connect(a, raw, length) != 0) {
      std::perror("loopback");
      std::exit(1);
    }
    b = ::accept(listener, nullptr, nullptr);
    ::close(listener);
    const int one = 1;
    for (int socket : {a, b}) ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  }
  ~RawPair() {
    ::close(a);
    ::close(b);
  }
};

void raw_receive(int socket, std::byte* to, std::size_t bytes, int flags) {
  for (std::size_t got = 0; got < bytes;) {
    const ssize_t n = ::recv(socket, to + got, bytes - got, flags);
    if (n > 0) got += static_cast<std::size_t>(n);
  }
}

void raw_send(int socket, const std::byte* from, std::size_t bytes) {
  for (std::size_t sent = 0; sent < bytes;) {
    const ssize_t n = ::send(socket, from + sent, bytes - sent, MSG_NOSIGNAL);
    if (n > 0) sent += static_cast<std::size_t>(n);
  }
}

double raw_stream() {
  RawPair pair;
  std::vector<std::byte> data(kTile);
  const auto start = Clock::now();
  std::thread receiver([&] {
    std::vector<std::byte> into(kTile);
    for (std::size_t at = 0; at < kStream; at += kTile) raw_receive(pair.b, into.data(), kTile, 0);
    raw_send(pair.b, into.data(), 1);
  });
  for (std::size_t at = 0; at < kStream; at += kTile) raw_send(pair.a, data.data(), kTile);
  raw_receive(pair.a, data.data(), 1, 0);
  const double seconds = seconds_since(start);
  receiver.join();
  return kStream / seconds / 1e9;
}

double raw_ping_pong(bool spin) {
  RawPair pair;
  const int flags = spin ? MSG_DONTWAIT : 0;
  std::array<std::byte, 8> data{};
  std::thread echo([&] {
    std::array<std::byte, 8> there{};
    for (int i = 0; i < kRounds; ++i) {
      raw_receive(pair.b, there.data(), 8, flags);
      raw_send(pair.b, there.data(), 8);
    }
  });
  const auto start = Clock::now();
  for (int i = 0; i < kRounds; ++i) {
    raw_send(pair.a, data.data(), 8);
    raw_receive(pair.a, data.data(), 8, flags);
  }
  const double seconds = seconds_since(start);
  echo.join();
  return seconds / kRounds / 2 * 1e6;
}

// Waits for a tile, blocking or spinning, and releases it.
void take(End& end, int peer, bool spin) {
  Link& link = end.link(peer);
  if (spin) {
    while (link.peek() == nullptr) end.transport->progress();
  } else {
    drive(end, [&] { return link.peek() != nullptr; });
  }
  link.release();
}

double shoal_stream(int sockets, std::size_t tile) {
  auto ends = make_group(options_for(2, sockets, kTile));
  std::vector<std::byte> data(tile);
  const std::size_t tiles = kStream / kTile;
  const TileHeader header{0, 0, 0, static_cast<std::uint32_t>(tile), 0};
  const auto start = Clock::now();
  std::thread receiver([&] {
    for (std::size_t i = 0; i < tiles; ++i) take(ends[1], 0, false);
    ends[1].link(0).try_send({}, {});
    drive(ends[1], [&] { return ends[1].link(0).sent_tiles() == 1; });
  });
  Link& link = ends[0].link(1);
  for (std::size_t i = 0; i < tiles; ++i) drive(ends[0], [&] { return link.try_send(header, data); });
  take(ends[0], 1, false);
  const double seconds = seconds_since(start);
  receiver.join();
  return static_cast<double>(tiles * tile) / seconds / 1e9;
}

double shoal_ping_pong(int sockets, bool spin) {
  auto ends = make_group(options_for(2, sockets, kTile));
  std::array<std::byte, 8> data{};
  const TileHeader header{0, 0, 0, 8, 0};
  std::thread echo([&] {
    for (int i = 0; i < kRounds; ++i) {
      take(ends[1], 0, spin);
      ends[1].link(0).try_send(header, data);
    }
    drive(ends[1], [&] { return ends[1].link(0).sent_tiles() == kRounds; });
  });
  const auto start = Clock::now();
  for (int i = 0; i < kRounds; ++i) {
    ends[0].link(1).try_send(header, data);
    take(ends[0], 1, spin);
  }
  const double seconds = seconds_since(start);
  echo.join();
  return seconds / kRounds / 2 * 1e6;
}

// By the payload's bytes, which stay in the cache; the fastest of many passes.
void print_packing_speed() {
  const auto payload = gradient_bytes(kTile, 1);
  std::vector<std::byte> packed(kTile);
  std::vector<std::byte> back(kTile);
  std::size_t bytes = 0;
  double pack_gbs = 0;
  double unpack_gbs = 0;
  const auto speed_since = [](Clock::time_point start) { return kTile / seconds_since(start) / 1e9; };
  for (int i = 0; i < 2000; ++i) {
    auto start = Clock::now();
    bytes = tcp::pack(payload, packed);
    pack_gbs = std::max(pack_gbs, speed_since(start));
    start = Clock::now();
    if (!tcp::unpack(std::span(packed).first(bytes), back)) std::exit(1);
    unpack_gbs = std::max(unpack_gbs, speed_since(start));
  }
  fmt::print("normal floats, 128 KiB: packed at {:.1f} GB/s, unpacked at {:.1f} GB/s, {:.3f} of the bytes\n", pack_gbs,
             unpack_gbs, static_cast<double>(bytes) / kTile);
}

struct Row {
  const char* name;
  std::function<double()> measure;
  std::vector<double> values{};
};

void compare(const char* title, const char* unit, std::vector<Row> rows) {
  for (int i = 0; i < kRepetitions; ++i) {
    for (Row& row : rows) row.values.push_back(row.measure());
  }
  fmt::print("{}\n", title);
  double reference = 0;
  for (Row& row : rows) {
    std::sort(row.values.begin(), row.values.end());
    const double median = row.values[kRepetitions / 2];
    if (reference == 0) reference = median;
    fmt::print("  {:<22} {:8.2f} {} ({:.2f}..{:.2f})  {:.2f} x raw\n", row.name, median, unit, row.values.front(),
               row.values.back(), median / reference);
  }
}

void run() {
  compare("stream of 128 KiB tiles, 512 MiB, both sides may block", "GB/s",
          {{"raw send/recv", raw_stream},
           {"1 socket", [] { return shoal_stream(1, kTile); }},
           {"2 sockets", [] { return shoal_stream(2, kTile); }},
           {"4 sockets", [] { return shoal_stream(4, kTile); }}});
  compare("8 bytes there and back, one way, spinning", "us",
          {{"raw send/recv", [] { return raw_ping_pong(true); }},
           {"1 socket", [] { return shoal_ping_pong(1, true); }},
           {"2 sockets", [] { return shoal_ping_pong(2, true); }}});
  compare("8 bytes there and back, one way, blocking", "us",
          {{"raw send/recv", [] { return raw_ping_pong(false); }},
           {"1 socket", [] { return shoal_ping_pong(1, false); }},
           {"2 sockets", [] { return shoal_ping_pong(2, false); }}});
}

}  // namespace
}  // namespace shoal::tcp_test

int main(int count, char** arguments) {
  if (count > 1 && std::string_view(arguments[1]) == "packing") {
    shoal::tcp_test::print_packing_speed();
  } else {
    shoal::tcp_test::run();
  }
}
