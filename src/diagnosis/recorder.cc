#include "src/diagnosis/recorder.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

namespace shoal {
namespace {

/// One thread writes; one thread at a time reads.
class Queue {
 public:
  static constexpr std::size_t kCapacity = 65536;

  Queue() : thread_(static_cast<std::int32_t>(::gettid())), events_(std::make_unique<StageEvent[]>(kCapacity)) {}

  void add(StageEvent event) noexcept {
    const std::size_t head = head_.load(std::memory_order_relaxed);
    if (head - tail_.load(std::memory_order_acquire) == kCapacity) return;
    event.thread = thread_;
    events_[head % kCapacity] = event;
    head_.store(head + 1, std::memory_order_release);
  }
  void take(std::vector<StageEvent>* into) {
    const std::size_t head = head_.load(std::memory_order_acquire);
    std::size_t tail = tail_.load(std::memory_order_relaxed);
    for (; tail != head; ++tail) {
      if (into != nullptr) into->push_back(events_[tail % kCapacity]);
    }
    tail_.store(tail, std::memory_order_release);
  }

 private:
  const std::int32_t thread_;
  const std::unique_ptr<StageEvent[]> events_;
  std::atomic<std::size_t> head_{0};
  std::atomic<std::size_t> tail_{0};
};

/// The queues of all threads that have recorded something. Threads may end before their queues are read.
struct Queues {
  std::mutex mutex;
  std::vector<std::shared_ptr<Queue>> all;

  void take(std::vector<StageEvent>* into) {
    for (const auto& queue : all) queue->take(into);
    std::erase_if(all, [](const auto& queue) { return queue.use_count() == 1; });  // its thread has ended
  }
};

Queues& queues() {
  static Queues& made = *new Queues();  // never destroyed: threads may outlive every static object
  return made;
}

/// Null where there is no memory for it: nothing is recorded then.
Queue* own_queue() noexcept {
  thread_local const std::shared_ptr<Queue> own = []() -> std::shared_ptr<Queue> {
    try {
      auto made = std::make_shared<Queue>();
      const std::scoped_lock lock(queues().mutex);
      queues().all.push_back(made);
      return made;
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
  }();
  return own.get();
}

}  // namespace

void Recorder::add(StageEvent event) noexcept {
  if (Queue* queue = own_queue(); queue != nullptr) queue->add(event);
}

void Recorder::begin() {
  const std::scoped_lock lock(queues().mutex);
  if (on()) return;
  queues().take(nullptr);
  on_.store(true, std::memory_order_relaxed);
}

std::vector<StageEvent> Recorder::end() {
  const std::scoped_lock lock(queues().mutex);
  on_.store(false, std::memory_order_relaxed);
  std::vector<StageEvent> events;
  queues().take(&events);
  return events;
}

void trace_begin() { Recorder::begin(); }

std::vector<StageEvent> trace_end() { return Recorder::end(); }

}  // namespace shoal
