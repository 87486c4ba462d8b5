// Who wants to know of every call that ends.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace shoal::torch {

/// Tells a function of the calls that have ended, one after the other, in a thread where it may wait.
/// Thread rule: any thread may call.
class CompletionHook {
 public:
  using Function = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;
  explicit CompletionHook(Function function) : state_(std::make_shared<State>(std::move(function))) {}

  /// The function is told when this is completed, as the call with this number then is.
  void follow(c10::ivalue::Future& ended, c10d::OpType type, std::uint64_t sequence) const;
  /// Returns when it has been told of every call followed so far.
  /// `abort` as in wait_with_signals().
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
