// A proxy between two ranks, for tests: what goes through it can be changed, cut off and slowed down.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "src/base/descriptor.h"
#include "transports/tcp/address.h"

namespace shoal::tcp_test {

/// One run of bytes on its way through a Proxy.
struct Passage {
  int connection = 0;        ///< counted from 0 in the order in which they were made
  bool back = false;         ///< from the listening rank to the one that connects
  std::uint64_t offset = 0;  ///< of the first byte, in this direction
  std::span<std::byte> bytes;
};

/// Listens on an address of its own and forwards every connection to `target`. Before bytes go on, `judge` may change them,
/// and says how many of them pass: less than all, and the connection is cut behind them, by a reset or, where `orderly` says
/// so, as if both sides had closed it. `judge` is called by one thread at a time.
class Proxy {
 public:
  using Judge = std::function<std::size_t(const Passage&)>;

  Proxy(std::string target, Judge judge, bool orderly = false, const std::string& host = "127.0.0.1")
      : target_(std::move(target)), judge_(std::move(judge)), orderly_(orderly), stop_(::eventfd(0, EFD_CLOEXEC)) {
    auto where = *tcp::parse_host(host);
    listener_ = Descriptor(::socket(where.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    socklen_t length = where.length();
    EXPECT_EQ(::bind(listener_.get(), where.raw(), length), 0);
    EXPECT_EQ(::listen(listener_.get(), 64), 0);
    EXPECT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&where.storage), &length), 0);
    address_ = where.to_string();
    acceptor_ = std::thread([this] { accept_all(); });
  }
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;
  /// Cuts everything.
  ~Proxy() {
    const std::uint64_t one = 1;
    EXPECT_EQ(::write(stop_.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
    acceptor_.join();
    for (std::thread& pump : pumps_) pump.join();
  }

  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] int connections() const { return connections_; }
  [[nodiscard]] int cuts() const { return cuts_; }

 private:
  void accept_all() {
    while (wait_for(listener_.get())) {
      Descriptor near(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!near.valid()) continue;
      const auto where = tcp::parse_address(target_);
      Descriptor far(::socket(where->family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
      const int number = connections_++;
      if (::connect(far.get(), where->raw(), where->length()) != 0) continue;  // the end of `near` says so
      pumps_.emplace_back([this, number, near = std::move(near), far = std::move(far)]() mutable { pump(number, near, far); });
    }
  }

  // False where the proxy is to stop.
  bool wait_for(int socket) {
    std::array<pollfd, 2> both{{{stop_.get(), POLLIN, 0}, {socket, POLLIN, 0}}};
    ::poll(both.data(), both.size(), -1);
    return both[0].revents == 0;
  }

  void pump(int number, const Descriptor& near, const Descriptor& far) {
    std::array<std::uint64_t, 2> offsets{};
    std::array<std::byte, 32 << 10> buffer;
    for (;;) {
      std::array<pollfd, 3> all{{{stop_.get(), POLLIN, 0}, {near.get(), POLLIN, 0}, {far.get(), POLLIN, 0}}};
      ::poll(all.data(), all.size(), -1);
      if (all[0].revents != 0) return;
      for (std::size_t from = 0; from < 2; ++from) {
        if (all[1 + from].revents == 0) continue;
        const ssize_t got = ::recv(all[1 + from].fd, buffer.data(), buffer.size(), 0);
        if (got <= 0) return;
        const std::span<std::byte> bytes(buffer.data(), static_cast<std::size_t>(got));
        std::size_t pass = 0;
        {
          const std::lock_guard lock(mutex_);
          pass = judge_({number, from == 1, offsets[from], bytes});
        }
        offsets[from] += bytes.size();
        if (!send_all(all[2 - from].fd, bytes.first(pass))) return;
        if (pass == bytes.size()) continue;
        ++cuts_;
        if (!orderly_) {
          const linger reset{1, 0};
          for (const Descriptor* one : {&near, &far}) ::setsockopt(one->get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        }
        return;
      }
    }
  }

  bool send_all(int to, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(to, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) {
        bytes = bytes.subspan(static_cast<std::size_t>(sent));
        continue;
      }
      std::array<pollfd, 2> room{{{stop_.get(), POLLIN, 0}, {to, POLLOUT, 0}}};
      ::poll(room.data(), room.size(), -1);
      if (room[0].revents != 0 || (room[1].revents & (POLLERR | POLLHUP)) != 0) return false;
    }
    return true;
  }

  const std::string target_;
  const Judge judge_;
  const bool orderly_;
  Descriptor stop_;
  Descriptor listener_;
  std::string address_;
  std::mutex mutex_;
  std::atomic<int> connections_{0};
  std::atomic<int> cuts_{0};
  std::list<std::thread> pumps_;
  std::thread acceptor_;
};

}  // namespace shoal::tcp_test
