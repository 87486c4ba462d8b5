// How long communication takes, and how much of that training has to wait for.
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

/// Sums over some steps.
struct CommTimes {
  double exposed_s = 0;   ///< the training thread had nothing to do but wait
  double busy_s = 0;      ///< at least one operation was in flight
  std::size_t bytes = 0;  ///< gradients averaged by this rank
};

/// Collects when operations start and end.
/// Thread rule: every method may be called from any thread.
class CommClock {
 public:
  using Time = std::chrono::steady_clock::time_point;
  enum class Kind { gradients, blocking };
  struct Operation {
    Kind kind;
    Time start, end;
    std::size_t bytes;
    const void* memory = nullptr;  ///< begin of the allocation: pieces of one bucket have it in common
    std::uint64_t call = 0;        ///< shoal's number of the call, as in StageEvent; 0 where it has none
  };

  /// An operation starts. record() or give_up() tells that it has ended.
  void begin();
  void give_up();
  void record(const Operation& operation);
  /// Waits until every operation that has begun is recorded. Whoever waits for an operation may go on before the backend's
  /// thread has told the clock; what has been waited for is in the sums after this.
  void settle();
  /// Told of every operation when it has ended, from the thread in which it ends. An empty one: nobody.
  using Observer = std::function<void(const Operation& operation)>;
  void observe(Observer observer);
  /// What ended since the last call, as the times of one step. Blocking operations are exposed from start to end. Of the
  /// gradients, what follows the start of the last one: backward has ended by then. That is how DistributedDataParallel waits;
  /// where updates are deferred into the next forward, DataParallel::take_waited_s knows what was exposed.
  CommTimes take_step();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t under_way_ = 0;
  Observer observer_;
  std::vector<Operation> operations_;
  Time covered_until_{};  // operations before this are in the sums already: one may start in a step and end in the next
};

/// `backend`, with every operation noted on `clock`. Serves what DataParallel calls.
c10::intrusive_ptr<c10d::Backend> with_clock(c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<CommClock> clock);

}  // namespace shoal::train
