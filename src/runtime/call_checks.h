// CallChecks: the checks of a communicator's calls that need not run in every pass.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>

#include <shoal/status.h>

#include "src/diagnosis/call_monitor.h"
#include "src/plan/operation.h"
#include "src/progress/control_messages.h"
#include "src/progress/tile_router.h"
#include "src/runtime/calls_in_flight.h"
#include "src/runtime/link_calls.h"
#include "src/runtime/messages.h"
#include "src/runtime/peer_memory_calls.h"

namespace shoal {

/// Tells the CallMonitor of calls that wait, and of ranks that are late, gone or in other calls; sends the reports that it
/// returns. Thread rule: the driver.
class CallChecks {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// What it looks at; all of it outlives it.
  struct Subjects {
    const Group& group;
    CallMonitor& monitor;
    CallsInFlight& calls;
    LinkCalls& links;
    PeerMemoryCalls& peer_memory_calls;
    Messages& messages;
    ControlMessages& control;
    TileRouter& router;
  };
  explicit CallChecks(const Subjects& subjects) : s_(subjects) {}

  /// All checks: the first problem that they find.
  std::optional<CallProblem> check(Time now);
  /// When they have to run again at the latest.
  [[nodiscard]] Time next_check() const noexcept;
  /// Compares signatures on links from which this rank waits for nothing: a peer whose call uses other links than this rank's
  /// is in another call.
  std::optional<CallProblem> check_unclaimed();
  /// What this rank is in; nothing: in no call.
  [[nodiscard]] std::optional<Occupation> occupation(Time now);

 private:
  std::optional<CallProblem> check_members(Time now);
  std::optional<CallProblem> check_links(Time now);
  std::optional<CallProblem> check_deadlines(Time now);
  std::optional<CallProblem> check_messages(Time now);
  /// Tells the other ranks, and the flight record, for whom the oldest call waits.
  void report_wait(Time now);
  void warn(internal::Operation& operation, bool started, Time now);
  [[nodiscard]] Status timed_out(const internal::Operation& operation, bool started, Time now);
  /// Which ranks a call waits for.
  [[nodiscard]] Late late_ranks(const internal::Operation& operation);
  /// "; connecting to rank 3, for 0.4 s"; empty where all links of the call are connected.
  [[nodiscard]] std::string connecting(const internal::Operation& operation, Time now) const;
  [[nodiscard]] std::string why_late(const internal::Operation& operation, Time now);
  [[nodiscard]] std::string why_not_started(const internal::Operation& operation, Time now);

  const Subjects s_;
  Absence window_absence_;  // of a peer whose part in a call over windows is missing
};

}  // namespace shoal
