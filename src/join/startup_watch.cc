#include "src/join/startup_watch.h"

#include <cstdio>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "src/base/quiet_thread.h"
#include "src/join/rank_names.h"
#include "src/settings/settings.h"

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;

thread_local StartupWatch* watch_of_this_thread = nullptr;

}  // namespace

StartupWatch::StartupWatch(int rank, int size) : rank_(rank), size_(size) {
  const auto warn_after = time_setting("SHOAL_WARN_AFTER");
  if (watch_of_this_thread != nullptr || size < 2 || !warn_after.ok()) return;
  warn_after_ = *warn_after;
  watch_of_this_thread = this;
  try {
    thread_ = quiet_thread([this] { watch(); });
  } catch (const std::system_error&) {  // no thread can be started: the start-up continues without these lines
  }
}

StartupWatch::~StartupWatch() {
  if (watch_of_this_thread == this) watch_of_this_thread = nullptr;
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void StartupWatch::watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  Clock::duration next = warn_after_;
  while (!changed_.wait_until(lock, start_ + next, [this] { return over_; })) {
    const Clock::duration waited = Clock::now() - start_;
    const std::vector<int> absent = absent_ ? absent_() : std::vector<int>();
    const std::string line =
        fmt::format("shoal: startup: rank {} of {} has waited {:.1f} s, now for {}{}\n", rank_, size_,
                    std::chrono::duration<double>(waited).count(), what_.empty() ? "the first step" : what_,
                    absent.empty() ? "" : fmt::format("; {} did not join yet", names_of(absent, absent.size())));
    while (next <= waited) next *= 2;
    lock.unlock();  // a blocked terminal must not delay the start-up
    fmt::print(stderr, "{}", line);
    lock.lock();
  }
}

void startup_waits_for(std::string what) {
  StartupWatch* const watch = watch_of_this_thread;
  if (watch == nullptr) return;
  const std::lock_guard<std::mutex> lock(watch->mutex_);
  watch->what_ = std::move(what);
}

AbsentRanks::AbsentRanks(std::function<std::vector<int>()> absent) : watch_(watch_of_this_thread) {
  if (watch_ == nullptr) return;
  const std::lock_guard<std::mutex> lock(watch_->mutex_);
  watch_->absent_ = std::move(absent);
}

AbsentRanks::~AbsentRanks() {
  if (watch_ == nullptr) return;
  const std::lock_guard<std::mutex> lock(watch_->mutex_);
  watch_->absent_ = nullptr;
}

}  // namespace shoal
