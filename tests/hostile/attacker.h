// Somebody who wants to disturb a job: finds its listeners and says all kinds of things to them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "src/bootstrap/socket.h"

namespace shoal::hostile {

/// A socket that a process of the job listens on.
struct Target {
  pid_t pid = -1;
  bool tcp = true;      ///< else an abstract Unix socket
  int port = 0;         ///< on the loopback interface
  std::string address;  ///< dotted, or the name of the Unix socket
  bool served = false;  ///< answers junk by closing; the others only queue it until the job gets there
};

/// What listens in these processes, as /proc shows it.
std::vector<Target> find_targets(const std::vector<pid_t>& pids);

/// Bytes that somebody has recorded of a handshake with the listener at `port`.
struct Recording {
  int port = 0;
  std::string bytes;
};

/// Thread rule: one thread. Everything it does follows from the seed and the order of calls.
class Attacker {
 public:
  Attacker(std::vector<Target> targets, std::vector<Recording> recordings, std::uint64_t seed);

  /// Says junk to every target and finds out which of them answer by closing, until `expected` have. Returns how many did.
  int probe(int expected, double seconds);
  /// Makes one more hostile connection; the targets take turns. Those that are not served get at most `kMaxQueued` in all.
  void input();
  /// Closes every connection that is still open.
  void leave() { open_.clear(); }

  [[nodiscard]] std::uint64_t delivered() const noexcept { return delivered_; }  ///< to targets that are served

  static constexpr int kMaxQueued = 150;

 private:
  struct Open {
    Descriptor socket;
    std::string rest;  ///< to be sent byte by byte
  };
  [[nodiscard]] Descriptor dial(const Target& target);
  void keep(Descriptor socket, std::string rest);
  void drip();
  [[nodiscard]] std::string random_bytes(std::size_t most);
  [[nodiscard]] std::string something_known(const Target& target);

  std::vector<Target> targets_;
  std::vector<int> queued_;
  std::vector<Recording> recordings_;
  std::mt19937_64 random_;
  std::deque<Open> open_;
  std::size_t next_ = 0;
  std::uint64_t delivered_ = 0;
};

}  // namespace shoal::hostile
