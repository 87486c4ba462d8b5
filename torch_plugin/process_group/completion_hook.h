// The hook that is called for every call that ends.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace shoal::torch {

/// Calls a function for each call that has ended, one after the other, in a thread in which the function may wait. Thread
/// rule: any thread may call.
class CompletionHook {
 public:
  using Function = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;
  explicit CompletionHook(Function function) : state_(std::make_shared<State>(std::move(function))) {}

  /// When `ended` completes, the function is called for the call with this number.
  void follow(c10::ivalue::Future& ended, c10d::OpType type, std::uint64_t sequence) const;
  /// Returns when the function has been called for every call followed so far. `abort` as in wait_with_signals().
  void wait(const std::function<void(const std::string& reason)>& abort) const;

 private:
  struct State {
    explicit State(Function told) : function(std::move(told)) {}
    const Function function;
    std::mutex mutex;
    std::condition_variable all_told;
    std::size_t untold = 0;
  };
  const std::shared_ptr<State> state_;
};

}  // namespace shoal::torch
