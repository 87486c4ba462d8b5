// The listeners of a job: those that it publishes in its store, and those in /proc.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include <shoal/status.h>
#include <shoal/store.h>

#include "tests/hostile/shared_state.h"

namespace shoal::hostile {

/// A socket that a rank listens on.
struct Listener {
  std::string name;     ///< "second control of rank 2, IPv6"
  std::string address;  ///< "127.0.0.1:4711", "[::1]:4711", "@00a3f" for a Unix socket
  std::string plane;    ///< "second/control": the same for listeners that share a key
  int rank = 0;
  int serves_in = 0;          ///< the stage in which it accepts; 0: always; kNever: it only has a backlog
  std::size_t connected = 0;  ///< minimum of connections that peers make to it or to its twin in the other address family
  std::vector<std::string> recordings;  ///< of connections to it or to its twin
  bool borrowed = false;                ///< recordings of another rank: no peer connects to the last rank

  [[nodiscard]] bool tcp() const { return address.front() != '@'; }
  /// Bytes that the connecting side sends before the first answer, and in the whole handshake.
  [[nodiscard]] std::size_t greeting_bytes() const;
  [[nodiscard]] std::size_t handshake_bytes() const;
  [[nodiscard]] bool serves(int stage) const { return serves_in == 0 || serves_in == stage; }
};

/// All listeners that the ranks publish. Waits until all have.
Result<std::vector<Listener>> published_listeners(Store& store, int port, std::chrono::steady_clock::time_point deadline);

/// Listening sockets of these processes, IPv4, IPv6 and Unix: address -> process.
std::map<std::string, pid_t> found_listeners(const std::vector<pid_t>& pids);

/// Adds the recordings of genuine connections so far.
void add_recordings(std::vector<Listener>& listeners, const SharedState& state);

}  // namespace shoal::hostile
