#include "tests/hostile/attacker.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

namespace shoal::hostile {
namespace {

constexpr std::size_t kMaxOpen = 150;  // half-open and slow connections that are held at a time

/// Inode of a socket -> who holds it.
std::map<std::string, pid_t> sockets_of(const std::vector<pid_t>& pids) {
  std::map<std::string, pid_t> inodes;
  for (const pid_t pid : pids) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error)) {
      const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
      if (target.starts_with("socket:[")) inodes.emplace(target.substr(8, target.size() - 9), pid);
    }
  }
  return inodes;
}

void send_now(const Descriptor& socket, std::string_view bytes) {
  static_cast<void>(!::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
}

}  // namespace

std::vector<Target> find_targets(const std::vector<pid_t>& pids) {
  const auto inodes = sockets_of(pids);
  std::vector<Target> targets;
  std::string line;
  std::ifstream tcp("/proc/net/tcp");
  for (std::getline(tcp, line); std::getline(tcp, line);) {
    // sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode
    std::istringstream words(line);
    std::array<std::string, 10> word;
    for (std::string& one : word) words >> one;
    const auto holder = inodes.find(word[9]);
    if (word[3] != "0A" || holder == inodes.end()) continue;
    in_addr address{static_cast<in_addr_t>(std::stoul(word[1].substr(0, 8), nullptr, 16))};
    std::array<char, INET_ADDRSTRLEN> text{};
    ::inet_ntop(AF_INET, &address, text.data(), text.size());
    targets.push_back({holder->second, true, std::stoi(word[1].substr(9), nullptr, 16), text.data(), false});
  }
  std::ifstream unix_sockets("/proc/net/unix");
  for (std::getline(unix_sockets, line); std::getline(unix_sockets, line);) {
    // Num RefCount Protocol Flags Type St Inode Path; flag 0x10000: listens
    std::istringstream words(line);
    std::array<std::string, 8> word;
    for (std::string& one : word) words >> one;
    const auto holder = inodes.find(word[6]);
    if (word[3] != "00010000" || holder == inodes.end() || !word[7].starts_with('@')) continue;
    targets.push_back({holder->second, false, 0, word[7].substr(1), false});
  }
  return targets;
}

Attacker::Attacker(std::vector<Target> targets, std::vector<Recording> recordings, std::uint64_t seed)
    : targets_(std::move(targets)), queued_(targets_.size()), recordings_(std::move(recordings)), random_(seed) {}

Descriptor Attacker::dial(const Target& target) {
  if (!target.tcp) {
    Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, target.address.data(), target.address.size());
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + target.address.size());
    return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0 ? std::move(socket) : Descriptor();
  }
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // From many addresses, since the ports of one run out; and without leaving the system a memory of each.
  const int on = 1;
  const linger reset{1, 0};
  ::setsockopt(socket.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
  ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  sockaddr_in from{};
  from.sin_family = AF_INET;
  from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + static_cast<std::uint32_t>(random_() % 200));
  ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&from), sizeof from);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(target.port));
  ::inet_pton(AF_INET, target.address.c_str(), &to.sin_addr);
  if (to.sin_addr.s_addr == 0) to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0 ? std::move(socket) : Descriptor();
}

int Attacker::probe(int expected, double seconds) {
  std::vector<Descriptor> sockets;
  std::vector<pollfd> polled;
  for (const Target& target : targets_) {
    sockets.push_back(dial(target));
    send_now(sockets.back(), std::string(200, '?'));
    polled.push_back({target.tcp ? sockets.back().get() : -1, POLLIN, 0});
  }
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  int served = 0;
  while (served < expected && std::chrono::steady_clock::now() < until) {
    if (::poll(polled.data(), polled.size(), 100) <= 0) continue;
    for (std::size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].fd < 0 || polled[i].revents == 0) continue;
      targets_[i].served = true;
      ++delivered_;
      ++served;
      polled[i].fd = -1;
    }
  }
  return served;
}

std::string Attacker::random_bytes(std::size_t most) {
  std::string bytes(1 + random_() % most, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random_());
  return bytes;
}

std::string Attacker::something_known(const Target& target) {
  std::vector<const Recording*> fitting;
  for (const Recording& one : recordings_) {
    if (one.port == target.port) fitting.push_back(&one);
  }
  if (!target.tcp || fitting.empty()) return random_() % 2 == 0 ? "SHST\x02" : "SHOL";
  return fitting[random_() % fitting.size()]->bytes;
}

void Attacker::keep(Descriptor socket, std::string rest) {
  if (open_.size() >= kMaxOpen) open_.pop_front();
  open_.push_back({std::move(socket), std::move(rest)});
}

void Attacker::drip() {
  for (Open& one : open_) {
    if (one.rest.empty()) continue;
    send_now(one.socket, one.rest.substr(0, 1));
    one.rest.erase(0, 1);
  }
}

void Attacker::input() {
  std::size_t at = next_++ % targets_.size();
  while (!targets_[at].served && queued_[at]++ >= kMaxQueued) at = next_++ % targets_.size();
  const Target& target = targets_[at];
  Descriptor socket = dial(target);
  if (socket.get() < 0) return;
  if (target.served) ++delivered_;
  switch (random_() % 8) {
    case 0:
      send_now(socket, random_bytes(600));
      break;
    case 1:
      send_now(socket, random_bytes(20'000));
      break;
    case 2:
      send_now(socket, something_known(target).substr(0, 4 + random_() % 40) + random_bytes(300));
      break;
    case 3:
      send_now(socket, "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: everything\r\n\r\n");
      break;
    case 4: {  // all but right
      std::string bytes = something_known(target);
      bytes[random_() % bytes.size()] ^= static_cast<char>(1U << random_() % 8);
      send_now(socket, bytes);
      break;
    }
    case 5:  // right, but recorded
      send_now(socket, something_known(target) + random_bytes(100));
      break;
    case 6:  // half-open or slow
      keep(std::move(socket), random_() % 2 == 0 ? "" : something_known(target));
      break;
    default:  // a port scan
      break;
  }
  if (next_ % 64 == 0) drip();
}

}  // namespace shoal::hostile
