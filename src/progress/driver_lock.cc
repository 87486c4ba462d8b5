#include "src/progress/driver_lock.h"

namespace shoal {

void DriverLock::give_back(ProgressEngine& engine) {
  auto left = ProgressEngine::Unfinished::nothing;
  do {
    left = engine.end_drive();
    engine.gate_.leave();
    // Once more: a thread that closed a client while this one drove relies on it.
  } while (engine.attention_.load(std::memory_order_seq_cst) && engine.gate_.try_enter());
  // seq_cst: either this thread sees what has been posted to the inbox, or the poster sees that no thread drives.
  if (left != ProgressEngine::Unfinished::nothing || !engine.inbox_.empty())
    engine.call_thread(left == ProgressEngine::Unfinished::calls);
}

}  // namespace shoal
