// Measures how long communication takes, and for how much of it training has to wait.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace shoal::train {

/// Sums over a number of steps.
struct CommTimes {
  double exposed_s = 0;   ///< the training thread only waited
  double busy_s = 0;      ///< at least one operation was in flight
  std::size_t bytes = 0;  ///< gradients averaged by this rank
};

/// Records when operations start and end. Thread rule: every method may be called from any thread.
class CommClock {
 public:
  using Time = std::chrono::steady_clock::time_point;
  enum class Kind { gradients, blocking };
  struct Operation {
    Kind kind;
    Time start, end;
    std::size_t bytes;
    const void* memory = nullptr;  ///< start of the allocation, which is common to the pieces of one bucket
    std::uint64_t call = 0;        ///< shoal's number of the call, as in StageEvent; 0 if it has none
  };

  /// An operation starts. record() or give_up() must follow when it has ended.
  void begin();
  void give_up();
  void record(const Operation& operation);
  /// Waits until every operation that has begun is recorded. A caller that waits for an operation may continue before the
  /// backend's thread has called record(); after settle() that operation is in the sums.
  void settle();
  /// Called for every operation when it has ended, in the thread in which it ends. An empty function removes the observer.
  using Observer = std::function<void(const Operation& operation)>;
  void observe(Observer observer);
  /// The operations that ended since the last call, as the times of one step. Blocking operations are exposed from start to
  /// end. Gradients are exposed from the start of the last operation on, because backward has ended by then.
  /// DistributedDataParallel waits in this way; if updates are deferred into the next forward, DataParallel::take_waited_s
  /// has the exposed time.
  CommTimes take_step();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t under_way_ = 0;
  Observer observer_;
  std::vector<Operation> operations_;
  Time covered_until_{};  // time up to which operations are in the sums: an operation may start in one step and end in the next
};

/// `backend`, with every operation recorded by `clock`. Implements the calls that DataParallel makes.
c10::intrusive_ptr<c10d::Backend> with_clock(c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<CommClock> clock);

}  // namespace shoal::train
