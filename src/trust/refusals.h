// Counts the connections that this process has refused.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace shoal {

/// Refused connections since the process started, over all its listeners, and why the last one was refused.
struct Refusals {
  std::uint64_t count = 0;
  std::string last;  ///< "store: it does not hold the job's key"; empty where there was none
  std::map<std::string, std::uint64_t, std::less<>> by_listener;
};

/// Counts a connection that `listener` ("store", "tcp", "shm") has refused. Thread rule: any thread. Memory is bounded by the
/// number of listeners.
void count_refusal(std::string_view listener, std::string_view why);

/// The counts so far. Thread rule: any thread.
Refusals refusals();

/// For a report: "refused: 3 connections (store 1, tcp 2), last: tcp: it belongs to another job"; empty where there was none.
std::string to_text(const Refusals& refusals);

}  // namespace shoal
