#include "torch_plugin/process_group/callback_threads.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "torch_plugin/process_group/quiet_thread.h"

namespace shoal::torch {
namespace {

thread_local int this_level = 0;

class Worker {
 public:
  explicit Worker(int level) : thread_(quiet_thread([this, level] { loop(level); })) {}

  void add(std::function<void()> task) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    wake_.notify_one();
  }

 private:
  [[noreturn]] void loop(int level) {
    this_level = level;
    ::pthread_setname_np(::pthread_self(), "shoal-callbacks");
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [this] { return !tasks_.empty(); });
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  std::thread thread_;  // last: it uses the members above
};

struct Workers {
  std::mutex mutex;
  std::deque<std::unique_ptr<Worker>> of_level;
};

/// Never destroyed: a sleeping thread costs nothing at exit, and futures may end during it.
std::atomic<Workers*>& workers() {
  static std::atomic<Workers*> current = [] {
    // A child of fork() has none of these threads.
    ::pthread_atfork(nullptr, nullptr, [] { workers().store(new Workers()); });
    return new Workers();
  }();
  return current;
}

}  // namespace

void CallbackThreads::run(int level, std::function<void()> task) {
  Workers& all = *workers().load();
  Worker* worker = nullptr;
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    while (all.of_level.size() < static_cast<std::size_t>(level))
      all.of_level.push_back(std::make_unique<Worker>(static_cast<int>(all.of_level.size()) + 1));
    worker = all.of_level[static_cast<std::size_t>(level) - 1].get();
  }
  worker->add(std::move(task));
}

int CallbackThreads::own_level() noexcept { return this_level; }

}  // namespace shoal::torch
