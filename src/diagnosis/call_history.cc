#include "src/diagnosis/call_history.h"

#include <algorithm>
#include <cstring>

namespace shoal {

CallHistory latest_calls(const FlightRecordPage& page, std::size_t most) {
  const std::uint64_t started = page.started.load();
  CallHistory history;
  history.first = started - std::min<std::uint64_t>(started, most);
  for (std::uint64_t at = history.first; at < started; ++at) history.calls.push_back(page.calls[at % kFlightRecordCalls]);
  return history;
}

std::vector<std::byte> to_bytes(const CallHistory& history) {
  const auto first = std::as_bytes(std::span(&history.first, 1));
  const auto calls = std::as_bytes(std::span(history.calls));
  std::vector<std::byte> bytes(first.begin(), first.end());
  bytes.insert(bytes.end(), calls.begin(), calls.end());
  return bytes;
}

std::optional<CallHistory> parse_history(std::span<const std::byte> bytes) {
  CallHistory history;
  if (bytes.size() < sizeof history.first || (bytes.size() - sizeof history.first) % sizeof(CallSignature) != 0)
    return std::nullopt;
  std::memcpy(&history.first, bytes.data(), sizeof history.first);
  history.calls.resize((bytes.size() - sizeof history.first) / sizeof(CallSignature));
  if (!history.calls.empty())
    std::memcpy(history.calls.data(), bytes.data() + sizeof history.first, bytes.size() - sizeof history.first);
  return history;
}

std::optional<NumberedCall> first_difference(const FlightRecordPage& own, const CallHistory& theirs) {
  const std::uint64_t started = own.started.load();
  const std::uint64_t remembered = started - std::min<std::uint64_t>(started, kFlightRecordCalls);
  for (std::size_t i = 0; i < theirs.calls.size(); ++i) {
    const std::uint64_t sequence = theirs.first + i;  // from a peer: it may wrap
    if (sequence < remembered || sequence >= started) continue;
    if (!(theirs.calls[i] == own.calls[sequence % kFlightRecordCalls])) return NumberedCall{sequence, theirs.calls[i]};
  }
  return std::nullopt;
}

}  // namespace shoal
