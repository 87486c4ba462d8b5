#include "src/progress/progress_thread.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include <fmt/format.h>

#include "src/base/event.h"
#include "src/base/quiet_thread.h"
#include "src/progress/drive.h"
#include "src/progress/driver_lock.h"
#include "src/progress/waiter.h"

namespace shoal {
namespace {

/// Where the system refuses the value, only speed is lost; but the user has set it, so this is reported.
void set_nice(int value) {
  if (value == 0 || ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), value) == 0) return;
  fmt::print(stderr,
             "shoal: process {}: SHOAL_PROGRESS_NICE={}: the system refused it ({}); the communication thread keeps the "
             "process's priority; grant CAP_SYS_NICE or raise the limit (ulimit -e)\n",
             ::getpid(), value, std::generic_category().message(errno));
}

bool needs_driver(const ProgressEngine* engine) { return engine->busy() || engine->unsent(); }

void run_on(const std::vector<int>& cores) {
  if (cores.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) {
    if (core < CPU_SETSIZE) CPU_SET(core, &set);
  }
  ::pthread_setaffinity_np(::pthread_self(), sizeof set, &set);  // a refusal costs speed only
}

}  // namespace

ProgressThread& ProgressThread::instance() {
  // Never destroyed: communicators may outlive every static object, and a thread that sleeps costs nothing at exit.
  static std::atomic<ProgressThread*> current = [] {
    // A child of fork() has no such thread, and must not share the descriptor that wakes it with its parent and siblings. The
    // list of engines must be whole there.
    ::pthread_atfork([] { current.load()->mutex_.lock(); }, [] { current.load()->mutex_.unlock(); },
                     [] {
                       static ProgressThread* of_parent = nullptr;  // its engines stay: nothing of them may be destroyed here
                       of_parent = current.load();
                       of_parent->mutex_.unlock();
                       for (const auto& engine : of_parent->engines_) engine->leave_to_parent();
                       current.store(new ProgressThread(), std::memory_order_release);
                     });
    return new ProgressThread();
  }();
  return *current.load(std::memory_order_acquire);
}

ProgressThread::ProgressThread() : wake_event_(make_event()) {}
ProgressThread::~ProgressThread() = default;

Status ProgressThread::add(const std::shared_ptr<ProgressEngine>& engine, const Place& place) {
  const std::scoped_lock lock(mutex_);
  if (!wake_event_.valid()) wake_event_ = make_event();  // the constructor found no descriptor for it
  if (!wake_event_.valid()) return system_error("start-up: an eventfd for the communication thread", errno);
  engines_.push_back(engine);
  generation_.fetch_add(1);
  if (!started_.load()) place_ = place;
  return {};
}

void ProgressThread::remove(ProgressEngine* engine) {
  std::uint64_t generation = 0;
  {
    const std::scoped_lock lock(mutex_);
    std::erase_if(engines_, [&](const auto& known) { return known.get() == engine; });
    generation = generation_.fetch_add(1) + 1;
    if (!started_.load()) return;
  }
  wake();
  if (std::this_thread::get_id() == thread_.get_id()) return;  // destroyed in a callback: the loop notices by itself
  for (auto seen = seen_generation_.load(); seen < generation; seen = seen_generation_.load()) seen_generation_.wait(seen);
}

Status ProgressThread::notify(ProgressEngine* engine) {
  engine->wants_thread.store(true, std::memory_order_seq_cst);
  news_.store(true, std::memory_order_seq_cst);
  if (!started_.load(std::memory_order_acquire)) {
    const std::scoped_lock lock(mutex_);
    if (!started_.load()) {
      try {
        thread_ = quiet_thread([this] { loop(); });
      } catch (const std::system_error& error) {
        return system_error("the communication thread cannot be started", error.code().value());
      }
      started_.store(true, std::memory_order_release);
    }
  }
  // seq_cst: either the thread sees news_ before it sleeps, or this thread sees that it sleeps.
  if (sleeps_.load(std::memory_order_seq_cst)) wake();
  return {};
}

void ProgressThread::wake() noexcept { ring_event(wake_event_.get()); }

void ProgressThread::loop() {
  ::pthread_setname_np(::pthread_self(), "shoal-progress");
  set_nice(place_.nice);
  run_on(place_.cores);
  Waiter waiter(place_.spare_cores, /*yields=*/false);
  for (;;) {
    if (const auto generation = generation_.load(); generation != seen_generation_.load()) {
      {
        const std::scoped_lock lock(mutex_);
        known_ = engines_;
      }
      driven_.reserve(known_.size());  // allocated here, not in a call
      locks_.reserve(known_.size());
      descriptors_.reserve(1 + kMaxWaitFds * known_.size());
      seen_generation_.store(generation);
      seen_generation_.notify_all();
    }
    news_.store(false, std::memory_order_seq_cst);
    for (const auto& engine : known_) {
      // A thread that waits for the lock now will notify this one when it gives the lock back. driver_wanted() is read after
      // news_ was cleared: in the other order that notification could be missed.
      if (!engine->wants_thread.exchange(false) || engine->driver_wanted()) continue;
      DriverLock lock(*engine, std::try_to_lock);
      if (!lock.owns() || !needs_driver(engine.get())) continue;
      driven_.push_back(engine.get());
      locks_.push_back(std::move(lock));
    }
    if (!driven_.empty()) {
      const auto interrupted = [&] {
        return news_.load() || generation_.load() != seen_generation_.load() ||
               std::any_of(driven_.begin(), driven_.end(), [](ProgressEngine* m) { return m->driver_wanted(); });
      };
      sleeps_.store(true, std::memory_order_seq_cst);  // drive() may poll: notifiers ring the event
      drive(driven_, waiter, wake_event_.get(), descriptors_, std::chrono::steady_clock::time_point::max(),
            [&] { return interrupted() || std::none_of(driven_.begin(), driven_.end(), needs_driver); });
      sleeps_.store(false, std::memory_order_relaxed);
      locks_.clear();  // engines that are still busy notify this thread again
      driven_.clear();
    } else {
      sleeps_.store(true, std::memory_order_seq_cst);
      if (!news_.load(std::memory_order_seq_cst) && generation_.load() == seen_generation_.load()) {
        pollfd descriptor{wake_event_.get(), POLLIN, 0};
        ::poll(&descriptor, 1, -1);
      }
      sleeps_.store(false, std::memory_order_relaxed);
    }
    drain_event(wake_event_.get());
  }
}

}  // namespace shoal
