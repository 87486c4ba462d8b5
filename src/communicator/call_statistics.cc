#include "src/communicator/call_statistics.h"

#include <algorithm>
#include <bit>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "src/settings/settings.h"

namespace shoal::internal {

CallMeter* CallStatistics::meter(CollectiveKind kind, std::size_t bytes, std::string_view algorithm, const char* reason) {
  const std::size_t size_class = std::bit_width(bytes);
  const std::scoped_lock lock(mutex_);
  for (std::size_t i = 0; i < used_; ++i) {
    Entry& entry = entries_[i];
    if (entry.kind != kind || entry.size_class != size_class || entry.algorithm != algorithm ||
        std::string_view(entry.reason) != reason) {
      continue;
    }
    entry.least_bytes = std::min(entry.least_bytes, bytes);
    entry.most_bytes = std::max(entry.most_bytes, bytes);
    return entry.meter.get();
  }
  if (used_ == kEntries) return &others_;
  Entry& entry = entries_[used_++];
  entry = {kind, size_class, bytes, bytes, std::string(algorithm), reason, std::make_unique<CallMeter>()};
  return entry.meter.get();
}

std::string CallStatistics::text(std::string_view place) const {
  const std::scoped_lock lock(mutex_);
  std::vector<const Entry*> shown;
  for (std::size_t i = 0; i < used_; ++i) {
    if (entries_[i].meter->calls() > 0) shown.push_back(&entries_[i]);
  }
  if (shown.empty() && others_.calls() == 0) return fmt::format("shoal explain: {}: no calls\n", place);
  std::ranges::sort(shown, {}, [](const Entry* entry) {
    return std::tuple(entry->kind, entry->size_class, std::string_view(entry->algorithm), std::string_view(entry->reason));
  });
  std::string text = fmt::format(
      "shoal explain: {}; times in us, from the call to its end on rank 0\n"
      "  {:<11} {:<22} {:<24} {:>9} {:>12} {:>12} {:>9}  {}\n",
      place, "collective", "bytes of each rank", "algorithm", "calls", "predicted", "measured", "ratio", "chosen by");
  for (const Entry* entry : shown) {
    std::string size = entry->least_bytes == entry->most_bytes ? format_bytes(entry->least_bytes)
                                                               : fmt::format("{} .. {}", entry->least_bytes, entry->most_bytes);
    if (entry->kind == CollectiveKind::barrier) size = "-";
    const double predicted_us = entry->meter->predicted_us();
    const double measured_us = entry->meter->median_us();
    const std::string ratio = predicted_us > 0 ? fmt::format("{:.2f}", measured_us / predicted_us) : "-";
    text += fmt::format("  {:<11} {:<22} {:<24} {:>9} {:>12.2f} {:>12.2f} {:>9}  {}\n", to_string(entry->kind), size,
                        entry->algorithm, entry->meter->calls(), predicted_us, measured_us, ratio, entry->reason);
  }
  if (others_.calls() > 0) {
    text += fmt::format("  and {} calls of other kinds and sizes: the report has room for {}\n", others_.calls(), kEntries);
  }
  return text;
}

}  // namespace shoal::internal
