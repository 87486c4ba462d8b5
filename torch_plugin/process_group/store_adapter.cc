#include "torch_plugin/process_group/store_adapter.h"

#include <algorithm>
#include <vector>

#include "torch_plugin/process_group/conversions.h"

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
  const std::string name(key);
  try {
    // c10d takes zero for "no limit", so a deadline that has passed still waits the shortest time there is.
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now());
    store_->wait({name}, std::max(left, milliseconds(1)));
    const std::vector<std::uint8_t> value = store_->get(name);
    return std::string(value.begin(), value.end());
  } catch (const std::exception& error) {
    const StatusCode code = steady_clock::now() >= deadline ? StatusCode::timeout : StatusCode::system_error;
    return Status(code, "c10d store, wait for \"" + name + "\": " + plain_message(error));
  }
}

}  // namespace shoal::torch
