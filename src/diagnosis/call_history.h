// CallHistory: which calls a rank has made, for ranks that disagree to find the first of which they do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "src/diagnosis/flight_record.h"
#include "src/diagnosis/signature.h"

namespace shoal {

/// The latest calls of one communicator on one rank, in order.
struct CallHistory {
  std::uint64_t first = 0;  ///< sequence number of the first of them
  std::vector<CallSignature> calls;
};

/// Of what `page` remembers, `most` calls at most: of another process half of its room, since its owner may go on, and write
/// over the rest, while this reads. Of any bytes.
CallHistory latest_calls(const LedgerPage& page, std::size_t most = kLedgerCalls / 2);

/// As it travels on the control plane; fits into one of its tiles.
std::vector<std::byte> to_bytes(const CallHistory& history);
/// Nothing where these are no such bytes.
std::optional<CallHistory> parse_history(std::span<const std::byte> bytes);

struct NumberedCall {
  std::uint64_t sequence = 0;
  CallSignature signature;
};
/// The first call of `theirs` that is another one in `own`, as far as both remember. Nothing where there is none.
std::optional<NumberedCall> first_difference(const LedgerPage& own, const CallHistory& theirs);

}  // namespace shoal
