// The attacker: makes hostile connections of all kinds to the listeners of a job.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <string>

#include "src/join/socket.h"
#include "tests/hostile/listeners.h"

namespace shoal::hostile {

enum class Kind { junk, long_junk, known_start, http, altered, recorded, half_open, slow, scan };
inline constexpr std::array kKindNames = {"junk",     "long junk", "known start", "http", "altered",
                                          "recorded", "half-open", "slow",        "scan"};
inline constexpr std::size_t kKinds = kKindNames.size();

/// Thread rule: one thread. Seed and order of calls determine everything it sends.
class Attacker {
 public:
  explicit Attacker(std::uint64_t seed) : random_(seed) {}

  /// Makes one more hostile connection. Errors: of connect().
  Status input(const Listener& listener, Kind kind);
  /// Sends `bytes` on a new connection and returns the first bytes of the answer: "" if the listener closes instead, nullopt if
  /// neither happens before the deadline.
  std::optional<std::string> exchange(const Listener& listener, const std::string& bytes,
                                      std::chrono::steady_clock::time_point deadline);
  /// Closes every connection that is still open.
  void close_all() { open_.clear(); }

  std::mt19937_64& random() { return random_; }

  static constexpr std::size_t kMaxOpen = 150;  ///< half-open and slow connections that are open at a time

 private:
  struct Open {
    Descriptor socket;
    std::string unsent;  ///< remaining bytes, sent one by one
  };
  Result<Descriptor> open_connection(const Listener& listener);
  void keep(Descriptor socket, std::string unsent);
  void send_slow_bytes();
  [[nodiscard]] std::string random_bytes(std::size_t most);
  [[nodiscard]] std::string known_bytes(const Listener& listener);

  std::mt19937_64 random_;
  std::deque<Open> open_;
  std::uint64_t inputs_ = 0;
};

}  // namespace shoal::hostile
