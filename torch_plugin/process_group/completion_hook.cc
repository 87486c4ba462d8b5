#include "torch_plugin/process_group/completion_hook.h"

#include <chrono>
#include <exception>
#include <utility>

#include <c10/util/Logging.h>

#include "torch_plugin/process_group/callback_threads.h"
#include "torch_plugin/process_group/calls_in_flight.h"
#include "torch_plugin/process_group/interpreter.h"

namespace shoal::torch {

void CompletionHook::follow(c10::ivalue::Future& ended, c10d::OpType type, std::uint64_t sequence) const {
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    ++state_->untold;
  }
  const auto started = std::chrono::steady_clock::now();
  // The function may be a Python function.
  auto in_flight = CallsInFlight::add({});
  ended.addCallback([in_flight = std::move(in_flight), state = state_, type, sequence, started](c10::ivalue::Future&) {
    const auto ended = std::chrono::steady_clock::now();
    auto info = std::make_shared<c10d::WorkInfo>(type, sequence, started, ended, ended - started);
    CallbackThreads::run(1, [in_flight, state, info = std::move(info)] {
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

void CompletionHook::wait(const std::function<void(const std::string& reason)>& abort) const {
  const InterpreterExit leaving;
  const auto told = [this] { return state_->untold == 0; };
  const auto wait_for = [&](std::chrono::milliseconds limit) {
    std::unique_lock<std::mutex> lock(state_->mutex);
    if (limit != kNoTimeout) return state_->all_told.wait_for(lock, limit, told);
    state_->all_told.wait(lock, told);
    return true;
  };
  wait_with_signals(kNoTimeout, wait_for, abort);
}

}  // namespace shoal::torch
