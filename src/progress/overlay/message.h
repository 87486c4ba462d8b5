// The messages that keepers send each other, and their wire format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "src/progress/overlay/rank_runs.h"
#include "src/topology/group_name.h"

namespace shoal {

inline constexpr std::size_t kMostNoticePayload = 4096;  ///< bytes
/// Bytes of a message: a payload, and the set of all ranks of the largest job as a bit map.
inline constexpr std::size_t kMostOverlayBytes = 16384;

/// An event that every rank is to learn of, such as an abort. Flooded.
struct Notice {
  int rank = 0;              ///< of the job, where it happened
  std::uint64_t number = 0;  ///< grows from notice to notice of that rank, not always by 1
  GroupName group;           ///< the communicator that it is about
  std::uint32_t kind = 0;    ///< ControlPlane::Message::Kind
  std::vector<std::byte> payload;
};

/// What has become of ranks. It holds for ever, so it needs no number, and sets of ranks can be joined. Flooded.
struct RankFacts {
  enum class Kind : std::uint8_t {
    death = 1,     ///< `payload`: how
    goodbye = 2,   ///< have left the job in order
    farewell = 3,  ///< have closed `group` in order; `payload`: their last calls, a CallHistory
  };
  Kind kind = Kind::death;
  GroupName group;
  std::vector<std::byte> payload;
  RankRuns ranks;

  /// Differs from `other` in the ranks at most.
  [[nodiscard]] bool says_the_same(const RankFacts& other) const noexcept {
    return kind == other.kind && group == other.group && payload == other.payload;
  }
};

/// For one rank. From host to host by next_hop().
struct RoutedMessage {
  int to = 0;    ///< rank of the job
  int from = 0;  ///< rank of the job
  GroupName group;
  std::uint32_t kind = 0;  ///< ControlPlane::Message::Kind
  std::vector<std::byte> payload;
};

using OverlayMessage = std::variant<Notice, RankFacts, RoutedMessage>;

/// Payloads are cut at kMostNoticePayload.
std::vector<std::byte> to_bytes(const OverlayMessage& message);
/// Nothing where the bytes are no message of a job with so many ranks. Safe for any bytes.
std::optional<OverlayMessage> parse_overlay(std::span<const std::byte> bytes, int ranks);

}  // namespace shoal
