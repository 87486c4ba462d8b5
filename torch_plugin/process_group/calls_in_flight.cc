#include "torch_plugin/process_group/calls_in_flight.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <list>
#include <mutex>
#include <utility>
#include <vector>

namespace shoal::torch {
namespace {

struct Registry {
  std::mutex mutex;
  std::condition_variable none_left;
  std::list<CallsInFlight::Abort> calls;
};

/// Never destroyed: calls may end during the exit of the process. A child of fork() has a new one: the calls belong to its
/// parent.
std::atomic<Registry*>& registry() {
  static std::atomic<Registry*> current = [] {
    ::pthread_atfork(nullptr, nullptr, [] { registry().store(new Registry()); });
    return new Registry();
  }();
  return current;
}

}  // namespace

class CallsInFlight::Entry {
 public:
  explicit Entry(Abort abort) : registry_(*registry().load()) {
    std::list<Abort> call;
    call.push_back(std::move(abort));
    place_ = call.begin();
    const std::lock_guard<std::mutex> lock(registry_.mutex);
    registry_.calls.splice(registry_.calls.end(), call);
  }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;
  ~Entry() {
    if (&registry_ != registry().load()) return;  // the parent's: another of its threads may have held the mutex
    std::list<Abort> call;                        // destroyed without the mutex
    const std::lock_guard<std::mutex> lock(registry_.mutex);
    call.splice(call.end(), registry_.calls, place_);
    if (registry_.calls.empty()) registry_.none_left.notify_all();
  }

 private:
  Registry& registry_;
  std::list<Abort>::iterator place_;
};

std::shared_ptr<CallsInFlight::Entry> CallsInFlight::add(Abort abort) { return std::make_shared<Entry>(std::move(abort)); }

bool CallsInFlight::end_all(const std::string& reason, std::chrono::milliseconds limit) {
  Registry& all = *registry().load();
  std::vector<Abort> aborts;
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    for (const Abort& abort : all.calls) {
      if (abort) aborts.push_back(abort);
    }
  }
  for (const Abort& abort : aborts) abort(reason);  // without the mutex: calls that end take it
  aborts.clear();
  std::unique_lock<std::mutex> lock(all.mutex);
  return all.none_left.wait_for(lock, limit, [&all] { return all.calls.empty(); });
}

}  // namespace shoal::torch
