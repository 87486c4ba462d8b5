// WaitSummary: which ranks wait in a call and which are late, added up over ranks and hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "src/diagnosis/signature.h"
#include "src/progress/overlay/rank_runs.h"
#include "src/topology/group_name.h"

namespace shoal {

/// A call of a communicator in which a rank waits, as the rank writes it to the board of its host.
struct WaitingCall {
  GroupName group;
  std::uint64_t sequence = 0;  ///< of the call in that communicator
  CallSignature call;
};

/// About one call of one communicator. Its size does not depend on the number of ranks. Thread rule: a value.
struct WaitSummary {
  static constexpr std::size_t kMostNames = 8;

  struct LateRank {
    int rank = 0;                        ///< of the job
    std::optional<WaitingCall> instead;  ///< the call of another communicator in which it waits
  };
  /// Ranks that wait in the call with the same signature.
  struct SameCall {
    CallSignature call;
    int lowest_rank = 0;
    std::uint32_t ranks = 0;
  };

  std::uint32_t hosts = 0;      ///< that have been added
  std::uint32_t waiting = 0;    ///< ranks that wait in the communicator, in whichever call
  std::uint32_t late = 0;       ///< ranks of the communicator that do not
  std::vector<LateRank> names;  ///< of them, the lowest kMostNames, ascending
  std::vector<SameCall> calls;  ///< the two signatures with the most ranks, the most first: the second is the odd one

  /// A rank of the communicator, which waits in `its_call` or in none, is asked about call `sequence` of `group`.
  void add(int rank, const std::optional<WaitingCall>& its_call, const GroupName& group, std::uint64_t sequence);
  void add(const WaitSummary& other);
  /// Nothing in it contradicts itself.
  [[nodiscard]] bool is_sound() const noexcept;

  void append_to(ByteWriter& bytes) const;
  /// Nothing where the bytes hold no sound summary of ranks below `ranks`.
  static std::optional<WaitSummary> read_from(ByteReader& bytes, int ranks);

 private:
  void add_name(const LateRank& rank);
  void add_call(const SameCall& same);
};

}  // namespace shoal
