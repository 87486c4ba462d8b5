// CallStatistics: what SHOAL_EXPLAIN=1 prints when a communicator ends.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "src/plan/call_meter.h"
#include "src/schedule/program.h"
#include "src/selector/selector.h"

namespace shoal::internal {

/// One meter for each (collective, power of two of the size, algorithm, reason). The table has a fixed size; calls that do not
/// fit are counted together. A Plan gets its meter when it is made, so a repeated call needs no lookup.
/// Thread rule: any thread.
class CallStatistics {
 public:
  static constexpr std::size_t kEntries = 128;

  CallStatistics() = default;
  CallStatistics(const CallStatistics&) = delete;
  CallStatistics& operator=(const CallStatistics&) = delete;

  /// The meter for calls of `kind` (the user's name of the call) and `bytes` by `algorithm`; lives as long as the table.
  /// `reason`: why the algorithm was chosen; must be a static string.
  CallMeter* meter(CollectiveKind kind, std::size_t bytes, std::string_view algorithm, const char* reason);

  /// The report: a headline with `place` ("4 ranks on 1x4 over shm"), a line for each meter with calls, or one line that there
  /// were none.
  [[nodiscard]] std::string text(std::string_view place) const;

 private:
  struct Entry {
    CollectiveKind kind = CollectiveKind::all_reduce;
    std::size_t size_class = 0;
    std::size_t least_bytes = 0;
    std::size_t most_bytes = 0;
    std::string algorithm;
    const char* reason = "";
    std::unique_ptr<CallMeter> meter;  // allocated with the entry, because most communicators need few entries
  };

  mutable std::mutex mutex_;  // for creating and printing meters; counting needs no lock
  std::array<Entry, kEntries> entries_;
  std::size_t used_ = 0;
  CallMeter others_;
};

}  // namespace shoal::internal
