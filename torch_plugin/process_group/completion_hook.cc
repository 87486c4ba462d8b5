#include "torch_plugin/process_group/completion_hook.h"

#include <chrono>
#include <exception>
#include <utility>

#include <c10/util/Logging.h>

#include "torch_plugin/process_group/callback_threads.h"

namespace shoal::torch {

void CompletionHook::follow(c10::ivalue::Future& ended, c10d::OpType type, std::uint64_t sequence) const {
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    ++state_->untold;
  }
  const auto started = std::chrono::steady_clock::now();
  ended.addCallback([state = state_, type, sequence, started](c10::ivalue::Future&) {
    const auto ended = std::chrono::steady_clock::now();
    auto info = std::make_shared<c10d::WorkInfo>(type, sequence, started, ended, ended - started);
    CallbackThreads::run(1, [state, info = std::move(info)] {
      try {
        state->function(info);
      } catch (const std::exception& error) {
        LOG(ERROR) << "shoal: the function given to registerOnCompletionHook failed: " << error.what();
      }
      const std::lock_guard<std::mutex> lock(state->mutex);
      if (--state->untold == 0) state->all_told.notify_all();
    });
  });
}

void CompletionHook::wait() const {
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->all_told.wait(lock, [this] { return state_->untold == 0; });
}

}  // namespace shoal::torch
