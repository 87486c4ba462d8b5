// Somebody who wants to disturb a job: says all kinds of things to its listeners.
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

/// Thread rule: one thread. Everything it does follows from the seed and the order of calls.
class Attacker {
 public:
  explicit Attacker(std::uint64_t seed) : random_(seed) {}

  /// Makes one more hostile connection. Errors: the system's, where there is no way to the listener.
  Status input(const Listener& listener, Kind kind);
  /// Says it, and hears what comes back until something has or the connection is closed: empty then, and nothing at all where
  /// neither happens before the deadline.
  std::optional<std::string> say(const Listener& listener, const std::string& bytes,
                                 std::chrono::steady_clock::time_point deadline);
  /// Closes every connection that is still open.
  void leave() { open_.clear(); }

  std::mt19937_64& random() { return random_; }

  static constexpr std::size_t kMaxOpen = 150;  ///< half-open and slow connections that are held at a time

 private:
  struct Open {
    Descriptor socket;
    std::string rest;  ///< to be sent byte by byte
  };
  Result<Descriptor> dial(const Listener& listener);
  void keep(Descriptor socket, std::string rest);
  void drip();
  [[nodiscard]] std::string random_bytes(std::size_t most);
  [[nodiscard]] std::string something_known(const Listener& listener);

  std::mt19937_64 random_;
  std::deque<Open> open_;
  std::uint64_t inputs_ = 0;
};

}  // namespace shoal::hostile
