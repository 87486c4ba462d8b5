// Control messages of peers and announcements of messages: reports of waiting ranks, causes of aborts, sizes.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "src/diagnosis/call_history.h"
#include "src/diagnosis/straggler_detector.h"
#include "src/progress/control.h"
#include "src/runtime/messages.h"

using namespace shoal;  // NOLINT(google-build-using-namespace): the whole file is one function

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr int kRanks = 5;
  const auto bytes = std::as_bytes(std::span(data, size));
  const Status cause = parse_abort(3, bytes);
  if (cause.ok() || std::ranges::any_of(cause.message(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }))
    std::abort();
  if (const auto announcement = Messages::parse_announcement(bytes)) {
    if (announcement->eager != 0 && announcement->size_bytes > size) std::abort();
    if (Messages::describe(*announcement).empty()) std::abort();
  }
  if (const auto report = StragglerDetector::parse(bytes)) {
    const auto again = StragglerDetector::parse(StragglerDetector::to_bytes(*report));
    if (!again || again->absent.bits != report->absent.bits || again->slow.bits != report->slow.bits ||
        again->sequence != report->sequence || !(again->call == report->call))
      std::abort();
  }
  if (const auto history = parse_history(bytes)) {
    static FlightRecordPage page;  // 130 calls: more than a peer sends
    page.started = 130;
    if (const auto first = first_difference(page, *history);
        first && (first->sequence >= page.started || first->signature == CallSignature{}))
      std::abort();
    if (to_bytes(*history) != std::vector<std::byte>(bytes.begin(), bytes.end())) std::abort();
  }

  // Four peers send reports, each from a part of the input.
  StragglerDetector call(0, kRanks);
  const StragglerDetector::Clock::time_point now{std::chrono::hours(1)};
  static_cast<void>(call.due(7, now + std::chrono::seconds(1), now));
  for (int rank = 1; rank < kRanks; ++rank) {
    StragglerDetector::Words report;
    const std::size_t at = std::min(size, static_cast<std::size_t>(rank - 1) * size / (kRanks - 1));
    std::memcpy(&report, data + at, std::min(size - at, sizeof report));
    if (to_string(report.call).empty()) std::abort();
    call.hear(rank, report, now);
  }
  const auto verdict = call.verdict(7, {{1}, {2}});
  if (verdict.absent.empty() && verdict.slow.empty()) std::abort();  // some rank is always named
  for (const auto* ranks : {&verdict.absent, &verdict.slow, &verdict.waiting}) {
    if (std::ranges::any_of(*ranks, [](int rank) { return rank <= 0 || rank >= kRanks; })) std::abort();
  }
  return 0;
}
