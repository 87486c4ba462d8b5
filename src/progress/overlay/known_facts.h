// KnownFacts: what a host has learnt from the flood; tells new messages from duplicates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <unordered_map>
#include <vector>

#include "src/progress/overlay/host_graph.h"
#include "src/progress/overlay/host_table.h"
#include "src/progress/overlay/message.h"

namespace shoal {

/// A host passes on what is new to it, on each connection, in the order in which it has learnt it. So the notices of a rank
/// arrive at each host in the order of their numbers, and a notice whose number is not higher than the last is a duplicate.
///
/// The memory is bounded: runs of ended ranks, and fixed numbers of the newest other messages. A duplicate of a message that
/// this class has forgotten is passed on once more. That does no harm: its receivers have acted on it already.
///
/// A rank has at most one end, death or goodbye: the first that arrives counts. Thread rule: one thread at a time.
class KnownFacts {
 public:
  static constexpr std::size_t kMostGroups = 1024;  ///< communicators (and histories) whose farewells are kept
  static constexpr std::size_t kMostNotices = 256;  ///< that are sent again on a new connection
  static constexpr std::size_t kMostNoticeBytes = 256 * 1024;
  static constexpr std::size_t kMostOrigins = 4096;  ///< ranks whose highest number is kept

  /// `table` outlives it.
  explicit KnownFacts(const HostTable& table) : table_(table), ended_(table.hosts()) {}

  /// True where it is new. `is_abort`: of several aborts of a communicator only the first is new.
  bool add(const Notice& notice, bool is_abort);
  /// Returns those of the ranks for which it is new.
  RankRuns add(const RankFacts& facts);

  /// What is sent first on a new connection. Causes come before their consequences: notices, farewells, goodbyes, deaths.
  [[nodiscard]] std::vector<OverlayMessage> all() const;

  [[nodiscard]] const EndedHosts& ended() const noexcept { return ended_; }
  /// The rank has neither died nor left.
  [[nodiscard]] bool is_present(int rank) const noexcept { return !gone_.contains(rank); }
  /// Of `host`, ascending.
  [[nodiscard]] std::vector<int> present_ranks(int host) const;

 private:
  RankRuns add_ends(const RankFacts& facts);
  RankRuns add_farewells(const RankFacts& facts);
  /// False where that communicator's abort is known.
  bool add_aborted(const GroupName& group);

  const HostTable& table_;
  RankRuns gone_;
  EndedHosts ended_;
  std::vector<RankFacts> ends_;                     // deaths and goodbyes
  std::list<RankFacts> farewells_;                  // the oldest first
  std::list<Notice> notices_;                       // the oldest first
  std::size_t notice_bytes_ = 0;                    // of their payloads
  std::unordered_map<int, std::uint64_t> highest_;  // number of each origin
  std::list<int> origins_;                          // of highest_, the oldest first
  std::list<GroupName> aborted_;                    // the oldest first
};

}  // namespace shoal
