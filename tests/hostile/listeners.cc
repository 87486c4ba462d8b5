#include "tests/hostile/listeners.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "src/join/store_session.h"
#include "tests/hostile/job.h"
#include "transports/shm/message.h"
#include "transports/tcp/address.h"
#include "transports/tcp/wire.h"

namespace shoal::hostile {
namespace {

// Bytes before the name of the Unix socket in an address of shared memory (AddressHead of transports/shm/listener.cc).
constexpr std::size_t kShmAddressHead = 48;

/// Inode of a socket -> its process.
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

// "0100007F:1F90", or four such 32-bit numbers before the colon, each in this machine's byte order.
std::string address_of(const std::string& text) {
  tcp::SocketAddress address;
  std::array<std::uint32_t, 4> words{};
  const std::size_t colon = text.find(':');
  for (std::size_t i = 0; 8 * i < colon; ++i)
    words[i] = static_cast<std::uint32_t>(std::stoul(text.substr(8 * i, 8), nullptr, 16));
  if (colon == 8) {
    auto& four = reinterpret_cast<sockaddr_in&>(address.storage);
    four.sin_family = AF_INET;
    std::memcpy(&four.sin_addr, words.data(), sizeof four.sin_addr);
  } else {
    auto& six = reinterpret_cast<sockaddr_in6&>(address.storage);
    six.sin6_family = AF_INET6;
    std::memcpy(&six.sin6_addr, words.data(), sizeof six.sin6_addr);
  }
  address.set_port(static_cast<std::uint16_t>(std::stoul(text.substr(colon + 1), nullptr, 16)));
  return address.to_string();
}

// Data links connect the isolated rank with the others; the higher rank connects, with two sockets. Control connections are
// between all ranks, but either rank may connect.
std::size_t connections_to(int rank, bool control, bool all_of_them) {
  if (control) return 0;
  std::size_t peers = 0;
  for (int other = rank + 1; other < kRanks; ++other) peers += rank == kIsolated || other == kIsolated ? 1 : 0;
  return all_of_them ? 2 * peers : peers;
}

}  // namespace

Result<std::vector<Listener>> published_listeners(Store& store, int port, std::chrono::steady_clock::time_point deadline) {
  std::vector<Listener> listeners;
  listeners.push_back({"store", "127.0.0.1:" + std::to_string(port), "store", 0, 0, kRanks, {}});
  for (const std::string communicator : {kFirst, kSecond}) {
    const bool second = communicator == kSecond;
    for (const std::string what : {"control", "network"}) {
      for (int rank = 0; rank < kRanks; ++rank) {
        const auto text = store.get(listener_key(communicator, what, rank), deadline);
        if (!text.ok()) return text.status();
        const auto addresses = tcp::split_addresses(*text);
        if (!addresses.ok()) return addresses.status();
        for (const auto& address : *addresses) {
          const std::string name =
              communicator + what + " of rank " + std::to_string(rank) + (address.family() == AF_INET6 ? ", IPv6" : ", IPv4");
          listeners.push_back({name,
                               address.to_string(),
                               communicator + what,
                               rank,
                               second ? kData : 0,
                               connections_to(rank, what == "control", !second),
                               {}});
        }
      }
    }
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == kIsolated) continue;  // the isolated rank shares no memory
    const auto text = store.get(listener_key(kSecond, "shm", rank), deadline);
    if (!text.ok()) return text.status();
    // Here the others are children of the lowest rank, and have none of their own. They listen too.
    listeners.push_back({"second/shm of rank " + std::to_string(rank),
                         "@" + text->substr(kShmAddressHead + 1),
                         "second/shm",
                         rank,
                         rank == 0 ? kSharedMemory : kNever,
                         rank == 0 ? std::size_t{1} : 0,
                         {}});
  }
  return listeners;
}

std::map<std::string, pid_t> found_listeners(const std::vector<pid_t>& pids) {
  const auto inodes = sockets_of(pids);
  std::map<std::string, pid_t> found;
  std::string line;
  for (const char* const file : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream sockets(file);
    for (std::getline(sockets, line); std::getline(sockets, line);) {
      // sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode
      std::istringstream words(line);
      std::array<std::string, 10> word;
      for (std::string& one : word) words >> one;
      const auto holder = inodes.find(word[9]);
      if (word[3] == "0A" && holder != inodes.end()) found.emplace(address_of(word[1]), holder->second);
    }
  }
  std::ifstream unix_sockets("/proc/net/unix");
  for (std::getline(unix_sockets, line); std::getline(unix_sockets, line);) {
    // Num RefCount Protocol Flags Type St Inode Path; flag 0x10000: listens
    std::istringstream words(line);
    std::array<std::string, 8> word;
    for (std::string& one : word) words >> one;
    const auto holder = inodes.find(word[6]);
    if (word[3] == "00010000" && holder != inodes.end()) found.emplace(word[7], holder->second);
  }
  return found;
}

void add_recordings(std::vector<Listener>& listeners, const SharedState& state) {
  const std::size_t count = std::min(state.connections.load(), state.recorded.size());
  for (Listener& listener : listeners) listener.recordings.clear();
  for (std::size_t i = 0; i < count; ++i) {
    const std::string to = state.recorded[i].to.data();
    const std::string text(state.recorded[i].text.data(), state.recorded[i].bytes);
    const auto recorded_at =
        std::find_if(listeners.begin(), listeners.end(), [&](const Listener& one) { return one.address == to; });
    if (recorded_at == listeners.end() || text.size() < recorded_at->handshake_bytes()) continue;
    // The handshake names ranks but no addresses: a recording for one listener of a rank also fits its twin.
    for (Listener& one : listeners) {
      if (one.plane == recorded_at->plane && one.rank == recorded_at->rank) one.recordings.push_back(text);
    }
  }
  for (Listener& listener : listeners) {
    if (!listener.recordings.empty()) listener.borrowed = false;
    for (const Listener& other : listeners) {
      if (!listener.recordings.empty() || other.plane != listener.plane || other.borrowed) continue;
      listener.recordings = other.recordings;
      listener.borrowed = !other.recordings.empty();
    }
  }
}

std::size_t Listener::greeting_bytes() const {
  const std::size_t store_greeting = store_hello(kJob, Nonce{}).size();
  return plane == "store" ? store_greeting : tcp() ? tcp::kHelloBytes : sizeof(shm::Message);
}

std::size_t Listener::handshake_bytes() const {
  return plane == "store" ? greeting_bytes() + sizeof(Proof) : tcp() ? 2 * tcp::kHelloBytes : greeting_bytes();
}

}  // namespace shoal::hostile
