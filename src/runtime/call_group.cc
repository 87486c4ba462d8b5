#include "src/runtime/call_group.h"

#include <chrono>
#include <utility>

#include "src/runtime/executor.h"

namespace shoal {

using internal::Operation;

// Every call reads depth_ first, so the access must not cost a function call.
__attribute__((tls_model("initial-exec"))) thread_local int CallGroup::depth_ = 0;

CallGroup::Collected& CallGroup::collected() {
  static thread_local Collected mine;
  return mine;
}

void CallGroup::add(Operation* operation, bool blocking) {
  operation->add_reference();  // the group's
  operation->add_reference();  // the driver's
  operation->put_into_group();
  collected().entries.push_back({operation, blocking});
  collected().unposted.push_back(operation);
}

void CallGroup::flush() {
  std::vector<Operation*>& unposted = collected().unposted;
  std::erase_if(unposted, [](Operation* operation) { return !operation->take_from_group(); });
  // Calls whose communicator has closed meanwhile: it may be destroyed, and then no thread drives them.
  std::erase_if(unposted, [](Operation* operation) {
    const auto executor = std::static_pointer_cast<Executor>(operation->client());
    const bool late = executor->closed();
    if (late) executor->post_late(operation);
    return late;
  });
  // Posts the calls of one ProgressEngine at once: its driver sees all of them or none.
  while (!unposted.empty()) {
    ProgressEngine* engine = executor_of(*unposted.front()).engine().get();
    std::vector<Operation*> together;
    std::erase_if(unposted, [&](Operation* operation) {
      if (executor_of(*operation).engine().get() != engine) return false;
      together.push_back(operation);
      return true;
    });
    engine->post(together);
  }
}

Status CallGroup::end() {
  if (depth_ == 0) return {StatusCode::invalid_argument, "group_end: this thread has no open group; call group_begin first"};
  if (--depth_ != 0) return {};
  flush();
  Status first;
  for (const Entry& entry : std::exchange(collected().entries, {})) {
    if (entry.blocking) {
      executor_of(*entry.operation).wait(entry.operation, std::chrono::steady_clock::time_point::max());
      if (first.ok()) first = entry.operation->outcome();
    }
    entry.operation->drop_reference();
  }
  return first;
}

}  // namespace shoal
