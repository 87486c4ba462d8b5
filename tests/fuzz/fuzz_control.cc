// Control messages of peers and announcements of messages: reports of waiting ranks, causes of aborts, sizes.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "src/diagnosis/call_history.h"
#include "src/diagnosis/straggler_detector.h"
#include "src/progress/control.h"
#include "src/progress/notice_board.h"
#include "src/runtime/messages.h"

using namespace shoal;  // NOLINT(google-build-using-namespace): the whole file is one target

namespace {

/// Rank 1 of two has written the input into its part of a NoticeBoard: what it has written, its cursors, its ring.
void read_board(std::span<const std::byte> bytes) {
  constexpr std::size_t kAreaBytes = 36864;
  constexpr std::size_t kHeadBytes = 12288;
  alignas(64) static std::array<std::byte, kHeadBytes + 2 * kAreaBytes> memory;
  memory.fill(std::byte{0});
  NoticeBoard zero(memory, 2, 0);
  NoticeBoard::Receivers one(2);
  one.insert(1);
  if (!zero.usable() || !zero.write(1, {}, one, bytes.first(std::min<std::size_t>(bytes.size(), 100)))) std::abort();
  std::memcpy(memory.data() + kHeadBytes + kAreaBytes, bytes.data(), std::min(bytes.size(), kAreaBytes));
  NoticeBoard::News news;
  for (int i = 0; i < 2; ++i) zero.read_from(1, news);
  if (news.malformed.size() > 1) std::abort();
  for (const auto& [writer, notice] : news.notices) {
    if (writer != 1 || notice.payload.size() > NoticeBoard::kMostBytes || notice.group.check >= GroupName::kCheckLimit)
      std::abort();
    static_cast<void>(ControlMessage::parse(1, notice.kind, notice.group, notice.payload));
  }
  // The writer follows no invalid cursor.
  while (zero.write(1, {}, one, bytes.first(std::min<std::size_t>(bytes.size(), 4096)))) {
  }
  const auto slow = zero.slowest();
  if (slow && *slow != 1) std::abort();
  static_cast<void>(zero.take_back(1));
  if (!zero.write(1, {}, one, {})) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr int kRanks = 5;
  const auto bytes = std::as_bytes(std::span(data, size));
  read_board(bytes);
  const Status cause = parse_abort(3, bytes);
  if (cause.ok() || std::ranges::any_of(cause.message(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }))
    std::abort();
  if (const auto announcement = Messages::parse_announcement(bytes)) {
    if (announcement->eager != 0 && announcement->size_bytes > size) std::abort();
    if (Messages::describe(*announcement).empty()) std::abort();
  }
  if (const auto report = StragglerDetector::parse(bytes)) {
    const auto again = StragglerDetector::parse(StragglerDetector::to_bytes(*report));
    if (!again || again->absent != report->absent || again->slow != report->slow || again->sequence != report->sequence ||
        !(again->call == report->call))
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
    std::size_t at = std::min(size, static_cast<std::size_t>(rank - 1) * size / (kRanks - 1));
    const auto take = [&](auto& value) {
      const std::size_t count = std::min(size - at, sizeof value);
      std::memcpy(&value, data + at, count);
      at += count;
    };
    std::uint64_t absent = 0;
    std::uint64_t slow = 0;
    take(report.sequence), take(report.asks), take(report.call), take(absent), take(slow);
    report.absent.insert_part(0, absent);
    report.slow.insert_part(0, slow);
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
