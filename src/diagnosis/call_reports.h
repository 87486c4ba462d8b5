// CallReports: the texts of a communicator's error reports and warnings.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <shoal/status.h>

#include "src/diagnosis/flight_record.h"
#include "src/diagnosis/last_waits.h"
#include "src/diagnosis/signature.h"
#include "src/diagnosis/straggler_detector.h"
#include "src/topology/group.h"

namespace shoal {

/// "call 4 (barrier)".
std::string describe_call(std::uint64_t sequence, const CallSignature& signature);

/// What a rank is in, and for how long it has been seen waiting there.
struct Occupation {
  std::string what;  ///< a call or a message: "call 4 (barrier)", "recv of int32 x 10 from rank 3 (tag 2)"
  std::optional<std::chrono::steady_clock::duration> waited;
  bool is_message = false;
};

/// A peer that is in another call than this rank.
struct Disagreement {
  int peer = -1;
  std::uint64_t sequence = 0;  ///< the call of this rank
  CallSignature ours;
  std::uint64_t its_sequence = 0;       ///< the call of the peer: the same or another one; may be the lower 32 bits only
  std::optional<CallSignature> theirs;  ///< where the peer has sent it
};

/// Ranks are those of the communicator. Reads flight records of other ranks. Thread rule: one thread at a time (the driver).
class CallReports {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// `group` and `last_waits` outlive it. `flight_record`: of this process; null where there is none.
  CallReports(const Group& group, std::shared_ptr<FlightRecord> flight_record, const LastWaits& last_waits);

  [[nodiscard]] Status disagreement(const Disagreement& what) const;
  /// `own`: what this rank is in. Also reports what the dead rank was in, where its flight record is on this host: no other
  /// rank may know which call the death has interrupted.
  [[nodiscard]] Status died(int rank, const Status& how, const Occupation& own, Time now) const;
  [[nodiscard]] Status left_too_early(int rank, const Occupation& own) const;
  /// `why`: a clause of late(), message_late() or not_started().
  [[nodiscard]] Status timed_out(const Occupation& own, const std::string& why) const;
  /// A line for standard error.
  [[nodiscard]] std::string warning(const Occupation& own, const std::string& why) const;

  // Clauses, to be appended to a report.
  /// "; not in the call: rank 3; rank 3: between its calls, after call 4 (barrier)".
  [[nodiscard]] std::string late(const StragglerDetector::Verdict& verdict, Time now) const;
  /// Why a message waits; `peer` below 0: any rank. Where the peer waits for a message as well, also why that does, and so on.
  [[nodiscard]] std::string message_late(bool is_send, int peer, Time now) const;
  /// "; rank 1 waits for recv of int32 x 10 from rank 3": another message, and why that waits.
  [[nodiscard]] std::string waits_for(const std::string& message, int peer, Time now) const;
  /// Why a call or message has not started: all before it have not. `earlier`: the oldest call in flight, where there is one,
  /// and `why` it waits.
  [[nodiscard]] std::string not_started(bool is_message, const std::optional<Occupation>& earlier,
                                        const std::string& why) const;
  /// "; rank 0 was in call 4 (barrier) of communicator 0 (2 ranks)"; nothing: in no call.
  [[nodiscard]] std::string was_in(const std::optional<Occupation>& own) const;

 private:
  [[nodiscard]] std::string name_of(int rank) const { return group_.name_of(rank); }
  [[nodiscard]] std::string own_name() const { return group_.name_of(group_.rank); }
  /// What a rank of the job is in instead, from its flight record or its last wait message; empty where there is neither.
  [[nodiscard]] Whereabouts where(int job_rank, Time now) const;
  /// "; rank 3: " and that.
  [[nodiscard]] std::string whereabouts(int rank, Time now) const;
  /// The same of the rank whose message it waits for, and so on, to the first that waits for none.
  [[nodiscard]] std::string chain_of_waits(int rank, Time now) const;
  [[nodiscard]] std::string name_of_job_rank(int job_rank) const;

  const Group& group_;
  std::shared_ptr<FlightRecord> flight_record_;
  const LastWaits& last_waits_;
};

}  // namespace shoal
