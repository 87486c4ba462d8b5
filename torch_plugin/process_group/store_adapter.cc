#include "torch_plugin/process_group/store_adapter.h"

#include <algorithm>
#include <vector>

#include "torch_plugin/process_group/conversions.h"
#include "torch_plugin/process_group/interpreter.h"
#include "torch_plugin/process_group/start_round.h"

namespace shoal::torch {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

Status StoreAdapter::set(std::string_view key, std::string_view value) {
  try {
    store_->set(std::string(key), std::vector<std::uint8_t>(value.begin(), value.end()));
    return {};
  } catch (const std::exception& error) {
    return Status(StatusCode::system_error, "c10d store, set \"" + std::string(key) + "\": " + plain_message(error));
  }
}

Result<std::string> StoreAdapter::get(std::string_view key, steady_clock::time_point deadline) {
  return wait_for(key, deadline, false);
}

Result<std::string> StoreAdapter::get_from(int /*rank*/, std::string_view key, steady_clock::time_point deadline) {
  return wait_for(key, deadline, entered_);
}

Status StoreAdapter::enter(int /*rank*/, int /*size*/) {
  entered_ = true;
  return {};
}

void StoreAdapter::leave() { entered_ = false; }

Status StoreAdapter::look(steady_clock::time_point /*deadline*/) {
  try {
    return entered_ ? failure() : Status();
  } catch (const std::exception& error) {
    return {StatusCode::system_error, "c10d store: " + plain_message(error)};
  }
}

Status StoreAdapter::failure() {
  const std::string given_up(kGivenUp);
  if (store_->check({given_up})) return {StatusCode::aborted, store_->get_to_str(given_up)};
  return failure_at(*store_, kRoundFailed);
}

Result<std::string> StoreAdapter::wait_for(std::string_view key, steady_clock::time_point deadline, bool sees_failures) {
  const std::string name(key);
  const auto failed = [&](StatusCode code, const std::string& why) {
    return Status(code, "c10d store, wait for \"" + name + "\": " + why);
  };
  StoreWait wait(*store_);
  try {
    for (;;) {
      const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
      if (wait.arrives(name, std::clamp(left, milliseconds(0), kStoreSlice))) return store_->get_to_str(name);
      if (Status status = sees_failures ? failure() : Status(); !status.ok()) return status;
      if (steady_clock::now() >= deadline) return failed(StatusCode::timeout, "the key was not set before the deadline");
    }
  } catch (const Interruption& interruption) {
    interruption_ = interruption.exception;
    return failed(StatusCode::aborted, reason_of(interruption));
  } catch (const std::exception& error) {
    return failed(StatusCode::system_error, plain_message(error));
  }
}

}  // namespace shoal::torch
