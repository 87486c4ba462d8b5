// What a job listens on: what it says in its store, and what /proc shows.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include <shoal/status.h>
#include <shoal/store.h>

#include "tests/hostile/board.h"

namespace shoal::hostile {

/// A socket that a rank listens on.
struct Listener {
  std::string name;     ///< "second control of rank 2, IPv6"
  std::string address;  ///< "127.0.0.1:4711", "[::1]:4711", "@00a3f" for a Unix socket
  std::string plane;    ///< "second/control": the same for those that share a key
  int rank = 0;
  int serves_in = 0;          ///< the stage in which it answers; 0: always; kNever: it only has a queue
  std::size_t connected = 0;  ///< connections that others of the job make to it or its neighbour in the other family, at least
  std::vector<std::string> recordings;  ///< of connections that were made to it or to that neighbour
  bool borrowed = false;                ///< they are another rank's, for want of own ones: nobody connects to the last rank

  [[nodiscard]] bool tcp() const { return address.front() != '@'; }
  /// Of who connects: up to what a genuine listener answers to, and all.
  [[nodiscard]] std::size_t greeting_bytes() const;
  [[nodiscard]] std::size_t handshake_bytes() const;
  [[nodiscard]] bool serves(int stage) const { return serves_in == 0 || serves_in == stage; }
};

/// All listeners of the job, as its ranks have told each other. Waits until they have.
Result<std::vector<Listener>> told_listeners(Store& store, int port, std::chrono::steady_clock::time_point deadline);

/// What listens in these processes, IPv4, IPv6 and Unix: address -> whose.
std::map<std::string, pid_t> found_listeners(const std::vector<pid_t>& pids);

/// Fills in what was taken down of genuine connections so far.
void add_recordings(std::vector<Listener>& listeners, const Board& board);

}  // namespace shoal::hostile
