// CallMonitor: what one communicator knows of its calls and of its peers' calls, and when that is a reason to fail.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <shoal/status.h>

#include "src/diagnosis/call_history.h"
#include "src/diagnosis/call_reports.h"
#include "src/diagnosis/flight_record.h"
#include "src/diagnosis/last_waits.h"
#include "src/diagnosis/signature.h"
#include "src/diagnosis/straggler_detector.h"
#include "src/diagnosis/watchdog.h"
#include "src/topology/group.h"

namespace shoal {

/// Since when a call in flight needs a peer that has left or whose link has ended; no time: no call does.
struct Absence {
  Watch::Clock::time_point since{};

  [[nodiscard]] bool begun() const noexcept { return since != Watch::Clock::time_point{}; }
};

/// Compares the calls of all ranks, finds late ranks, and writes the flight record. It is told what happens, and returns a
/// Status where the communicator has to fail with it. It moves nothing, sends nothing and reads no clock: its owner gives it
/// the time, and sends what history(), wait_message() and misses() return.
///
/// Ranks are those of the communicator. Thread rule: one thread at a time (the driver), but for failed().
class CallMonitor {
 public:
  using Clock = Watch::Clock;
  using Time = Clock::time_point;

  struct Options {
    std::shared_ptr<FlightRecord> flight_record;  ///< of this process; null: none
    Clock::duration warn_after{};                 ///< a call that waits longer deserves a warning; zero: never
    bool reaches_peers = true;                    ///< its owner can send peers what this class returns
  };
  /// `group` and `last_waits` outlive it.
  CallMonitor(const Group& group, const LastWaits& last_waits, const Options& options);

  // Calls of this rank. No allocation and no lock.
  /// The next call has started. `signature` and `hash`: the call's own, wherever in the order it stands. Returns the signature
  /// that this rank sends: with the calls before it.
  const CallSignature& entered(const CallSignature& signature, std::uint64_t hash) noexcept {
    const std::uint64_t sequence = next_call_++;
    record_.start(sequence, chain_.of(signature));
    chain_.add(hash);
    return record_.call(sequence);
  }
  /// A call has succeeded. `oldest`: the oldest call that is still in flight; next_call() where none is.
  void ended(std::uint64_t oldest) noexcept { record_.end_before(oldest); }
  void message_entered() noexcept { record_.start_message(); }
  void message_ended() noexcept { record_.end_message(); }
  /// Number of the next call to start.
  [[nodiscard]] std::uint64_t next_call() const noexcept { return next_call_; }
  /// The calls before that.
  [[nodiscard]] const CallChain& chain() const noexcept { return chain_; }
  /// The communicator has failed. Once, any thread.
  void failed(const Status& cause) noexcept { record_.fail(cause); }

  // Peers.
  /// `rank` has closed the communicator; `its_calls` is the history() that it sent.
  void peer_left(int rank, std::span<const std::byte> its_calls);
  /// `rank` has left the job.
  void peer_gone(int rank, Time now);
  [[nodiscard]] bool has_left(int rank) const noexcept { return left_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] bool any_left() const noexcept { return any_left_; }
  /// Returns the cause to fail with, unless `rank` has left before. `own`: what this rank is in.
  [[nodiscard]] std::optional<Status> peer_died(int rank, const Status& how, const std::optional<Occupation>& own,
                                                Time now) const;
  /// The wait_message() of a peer has arrived.
  void peer_waits(int rank, std::span<const std::byte> message, Time now);
  /// `rank` found this rank in another call than its own, and sent its history().
  [[nodiscard]] std::optional<Status> peer_disagrees(int rank, std::span<const std::byte> its_calls) const;
  /// A call in flight needs `rank`, which has left or whose `link` has ended, and no data of it is left to read. Returns the
  /// cause to fail with once that has lasted for long enough for the peers' reasons and late data to arrive.
  [[nodiscard]] std::optional<Status> absent(int rank, Absence& absence, const Status& link, const Occupation& own,
                                             Time now) const;
  /// When absent() will return a cause.
  [[nodiscard]] Time absence_ends(int rank, const Absence& absence, const Status& link) const;
  /// The cause where a call needs `rank`, which has left.
  [[nodiscard]] Status left_too_early(int rank, const Occupation& own) const;
  /// In a group of shrink(): the member that has left the job without joining the first call, once that is long enough ago.
  /// Another rank may already be in the next shrink() without it, and never join the call that this rank is in.
  [[nodiscard]] std::optional<int> missing_member(Time now) const;

  // Ranks that are in different calls.
  /// A signature has arrived from a peer from which this rank waits for nothing. A Disagreement where this rank has made that
  /// call with another one.
  [[nodiscard]] std::optional<Disagreement> stray_call(int rank, std::uint32_t wire_sequence,
                                                       const CallSignature& theirs) const;
  /// By the wait messages of peers. Signatures travel with data, so two ranks that disagree may both wait for the other's
  /// signature, or not need it. Cheap unless one has arrived since the last call, or this rank has made the call of an
  /// earlier one.
  [[nodiscard]] std::optional<Disagreement> take_disagreeing_wait();
  /// Returns the cause to fail with. Nothing: history() is to be sent to the peer, and asks() until that one has reported the
  /// first call that differs. `waits`: a call is in flight, so this rank can wait for an answer.
  [[nodiscard]] std::optional<Status> disagrees(const Disagreement& what, bool waits, Time now);
  /// A peer is about to report why the communicator closes. Without such a report the cause is `otherwise`, which is returned
  /// now where no report can arrive.
  [[nodiscard]] std::optional<Status> await_report(Status otherwise, Time now);
  /// This rank waits for a peer's report. No call makes progress meanwhile.
  [[nodiscard]] bool asks() const noexcept { return question_.has_value(); }
  /// The cause to fail with, where the report has not arrived in time.
  [[nodiscard]] std::optional<Status> unanswered(Time now) const;
  /// The mismatch that this rank is asking a peer about, where there is one; else `consequence`. The peer may exit because of
  /// the mismatch, or this rank may abort: all ranks must report the first cause.
  [[nodiscard]] Status or_mismatch(const Status& consequence) const;
  /// The latest calls of this rank, `most` of them, as peers read them.
  [[nodiscard]] std::vector<std::byte> history(std::size_t most = kFlightRecordCalls / 2) const;

  // Waits. To be called now and then while calls are in flight.
  /// The oldest call still waits; `first_deadline`: of all calls. True: misses() is to be called with the late ranks.
  [[nodiscard]] bool waits(std::uint64_t oldest, Time first_deadline, Time now);
  struct WaitMessage {
    std::vector<std::byte> bytes;
    std::vector<int> receivers;  ///< ranks of the job
  };
  /// Returns the wait messages to send, where some are due. `call`: the signature of the oldest.
  [[nodiscard]] std::vector<WaitMessage> misses(const CallSignature& call, const Late& late, Time now);
  /// A wait message between those of misses(), so that ranks in other calls detect the mismatch at once.
  [[nodiscard]] static std::vector<std::byte> wait_message(std::uint64_t sequence, const CallSignature& call, const Late& late);
  /// No call is in flight; of messages `number`, from or to `peer` (below 0: any), is the oldest. True where its description
  /// is to be recorded.
  [[nodiscard]] bool message_waits(std::uint64_t number, Time now);
  void record_message(int peer, const std::string& what);
  Watchdog& watchdog() noexcept { return watchdog_; }
  /// When a call may fail with its deadline: see StragglerDetector::verdict_at().
  [[nodiscard]] Time verdict_at(Time deadline) const { return straggler_detector_.verdict_at(deadline); }
  /// A clause for a report: the ranks that delay a call.
  [[nodiscard]] std::string why_late(std::uint64_t sequence, const Late& late, Time now) const;
  /// When to look again at the latest, while a call is in flight or this rank asks().
  [[nodiscard]] Time next_check() const;

  [[nodiscard]] const CallReports& reports() const noexcept { return reports_; }

 private:
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};

  struct Question {
    Status otherwise;  ///< the cause to report where no answer arrives
    Time until;
  };
  struct MissingMember {
    int rank;
    Time since;
  };

  void note_left(int rank) noexcept { left_[static_cast<std::size_t>(rank)] = any_left_ = true; }
  /// The call of a 32-bit sequence number on the wire, if this rank has made it and still remembers it.
  [[nodiscard]] std::optional<std::uint64_t> past_call(std::uint32_t wire_sequence) const noexcept;
  [[nodiscard]] Status first_mismatch(int rank, const NumberedCall& theirs) const;
  [[nodiscard]] Clock::duration patience(int rank, const Status& link) const;

  const Group& group_;
  const std::shared_ptr<FlightRecord> flight_record_;
  const bool reaches_peers_;
  CallReports reports_;
  FlightRecordEntry record_;
  std::uint64_t next_call_ = 0;
  CallChain chain_;
  Watchdog watchdog_;
  StragglerDetector straggler_detector_;
  bool record_due_ = false;  // waits() has found it, and
  bool report_due_ = false;  // misses() does it
  std::vector<bool> left_;   // ranks that have closed the communicator or left the job
  bool any_left_ = false;
  std::uint64_t compare_waits_at_ = kNever;  // next_call_ at which take_disagreeing_wait() has to look at the wait messages
  std::map<int, CallHistory> last_calls_;    // of those that have sent them
  std::optional<MissingMember> missing_member_;
  std::optional<Question> question_;
};

}  // namespace shoal
