// WaitCollector: reports of stragglers, added up by host and by a tree over hosts.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "src/progress/overlay/known_facts.h"
#include "src/progress/overlay/message.h"

namespace shoal {

/// What a waiting rank writes to its slot on the board of its host. It does so after a few milliseconds, because a rank without
/// a slot counts as late. It asks for a verdict only when it has waited for long.
struct WaitSlot {
  WaitingCall waits;
  RankRuns members;         ///< ranks of the communicator
  std::uint32_t asked = 0;  ///< grows each time that the rank asks
};

/// A request for a verdict goes to the root, the lowest live host with a rank of the communicator. The root asks down a tree
/// (branches()), the answers are added up on the way back, and the verdict goes down the same tree. Hosts without a rank of the
/// communicator are asked only when they are on the way to one. Each host sends at most four messages for each of its
/// neighbours in the tree, whatever the number of ranks that wait.
///
/// A host that does not answer in time is left out; WaitSummary::hosts tells. The next request repeats all of it.
/// Reads no clock. Thread rule: one thread at a time.
class WaitCollector {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::milliseconds kHop{25};      ///< a host waits so long for each level of the tree below it
  static constexpr std::chrono::milliseconds kSeldom{100};  ///< requests for a communicator are passed on so often at most
  static constexpr std::chrono::seconds kVerdictWithin{2};  ///< after its answer a host waits so long for the verdict
  static constexpr std::size_t kMost = 64;                  ///< questions in progress; beyond, the oldest is dropped

  struct Output {
    std::vector<std::pair<int, OverlayMessage>> send;  ///< to hosts
    std::vector<WaitVerdict> verdicts;                 ///< for the ranks of this host
  };

  /// `table` and `facts` outlive it.
  WaitCollector(const HostTable& table, const KnownFacts& facts, int host) : table_(table), facts_(facts), host_(host) {}

  /// `rank` of this host has written `slot`; nothing: it no longer waits. True where the rank asks for a verdict: the caller
  /// passes that to request().
  bool set_slot(int rank, const std::optional<WaitSlot>& slot);
  [[nodiscard]] const WaitSlot* slot(int rank) const;

  // `up`: hosts with a connection, ascending.
  /// A rank of this host asks for a verdict, or another host passes on such a request.
  void request(const WaitRequest& request, std::span<const int> up, Time now, Output& out);
  void on_question(int from, const WaitQuestion& question, std::span<const int> up, Time now, Output& out);
  void on_answer(int from, const WaitAnswer& answer, Output& out, Time now);
  void on_verdict(int from, const WaitVerdict& verdict, Output& out);
  /// The connection with `host` has ended, so it will not answer.
  void on_lost(int host, Output& out, Time now);
  void on_time(Time now, Output& out);
  [[nodiscard]] Time next_time() const noexcept;
  /// This rank is no longer the keeper.
  void clear() { questions_.clear(); }

 private:
  struct Question {
    std::uint64_t number = 0;
    int asker = -1;  // host; -1: this one is the root
    std::uint64_t asker_number = 0;
    GroupName group = {};
    std::uint64_t sequence = 0;
    WaitSummary summary = {};
    std::vector<int> children = {};
    std::vector<int> awaited = {};  // of them
    bool answered = false;
    Time until = {};
  };
  [[nodiscard]] bool has_members(const RankRuns& members, int first_host, int end_host) const;
  /// -1: no member is left.
  [[nodiscard]] int root_of(const RankRuns& members) const;
  void ask(Question question, const WaitRequest& about, int end, std::chrono::milliseconds patience, std::span<const int> up,
           Time now, Output& out);
  /// All have answered, or the time is over.
  void finish(Question& question, Time now, Output& out);
  void conclude(const Question& question, const WaitSummary& summary, Output& out) const;

  const HostTable& table_;
  const KnownFacts& facts_;
  const int host_;
  std::map<int, WaitSlot> slots_;                   // by rank of this host
  std::vector<std::pair<GroupName, Time>> passed_;  // requests of the last kSeldom
  std::list<Question> questions_;                   // the oldest first
  std::uint64_t numbers_ = 0;
};

}  // namespace shoal
