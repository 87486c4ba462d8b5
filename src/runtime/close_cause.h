// CloseCause: why a communicator has closed, and who wants to know.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include <shoal/status.h>

namespace shoal {

/// Thread rule: any thread.
class CloseCause {
 public:
  /// The first cause stays. False where there is one already.
  bool set(const Status& cause) {
    const std::scoped_lock lock(mutex_);
    if (!cause_.ok()) return false;
    cause_ = cause;
    return true;
  }
  /// In a child of fork(), where the thread that held the mutex may not exist.
  void set_if_free(const Status& cause) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock.owns_lock() && cause_.ok()) cause_ = cause;
  }
  [[nodiscard]] Status get() const {
    const std::scoped_lock lock(mutex_);
    return cause_;
  }

  void call_hooks(const Status& cause) {
    const std::scoped_lock lock(hook_mutex_);
    for (const auto& [owner, hook] : hooks_) hook(cause);
  }
  /// Stores `hook` for call_hooks(), or removes the one of `owner` where it is empty. `closed()`: call_hooks() is about to be
  /// called, or has been; then `hook` is called at once.
  template <typename Closed>
  void set_hook(const void* owner, std::function<void(const Status&)> hook, Closed closed) {
    const std::scoped_lock lock(hook_mutex_);
    if (hook && !closed()) {
      hooks_[owner] = std::move(hook);
      return;
    }
    hooks_.erase(owner);  // call_hooks() may wait for the mutex: it would call a stored hook a second time
    if (hook) hook(get());
  }

 private:
  mutable std::mutex mutex_;  // guards cause_; never taken in a call that succeeds
  Status cause_;
  std::mutex hook_mutex_;  // guards hooks_, also while they are called; locked before any mutex of a hook
  std::map<const void*, std::function<void(const Status&)>> hooks_;  // by owner
};

}  // namespace shoal
