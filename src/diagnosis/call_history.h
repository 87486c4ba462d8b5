// CallHistory: the calls that a rank has made, with which ranks that disagree find the first call that differs.
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

/// The latest calls that `page` remembers, at most `most`. Of another process's page only half of its room is read, since its
/// owner may continue and overwrite the rest meanwhile. `page` may hold any bytes.
CallHistory latest_calls(const FlightRecordPage& page, std::size_t most = kFlightRecordCalls / 2);

/// As sent on the control plane; fits into one of its tiles.
std::vector<std::byte> to_bytes(const CallHistory& history);
/// Nothing where `bytes` hold no CallHistory.
std::optional<CallHistory> parse_history(std::span<const std::byte> bytes);

struct NumberedCall {
  std::uint64_t sequence = 0;
  CallSignature signature;
};
/// The first call of `theirs` that differs from the same call in `own`, as far as both remember. Nothing where there is none.
std::optional<NumberedCall> first_difference(const FlightRecordPage& own, const CallHistory& theirs);

}  // namespace shoal
