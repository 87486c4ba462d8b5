// LastWaits: in which call each rank of the job last reported that it waits.
#pragma once

#include <chrono>
#include <cstdint>
#include <unordered_map>

#include "src/diagnosis/signature.h"

namespace shoal {

/// A wait message of a rank, in whichever communicator.
struct LastWait {
  std::uint32_t communicator = 0;  ///< GroupName::short_form()
  std::uint64_t sequence = 0;
  CallSignature call;
  std::chrono::steady_clock::time_point at;
};

/// The latest of each rank, for all communicators of a process. Thread rule: one thread at a time (the driver).
class LastWaits {
 public:
  void note(int job_rank, const LastWait& wait) { waits_[job_rank] = wait; }
  /// Null where `job_rank` has sent none.
  [[nodiscard]] const LastWait* of(int job_rank) const {
    const auto found = waits_.find(job_rank);
    return found == waits_.end() ? nullptr : &found->second;
  }

 private:
  std::unordered_map<int, LastWait> waits_;
};

}  // namespace shoal
