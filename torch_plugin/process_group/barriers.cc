// Barriers: an ordinary collective one, and one through the store that can report the missing ranks.
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include <ATen/DeviceAccelerator.h>

#include "torch_plugin/process_group/arguments.h"
#include "torch_plugin/process_group/conversions.h"
#include "torch_plugin/process_group/interpreter.h"
#include "torch_plugin/process_group/process_group_shoal.h"
#include "torch_plugin/process_group/staging.h"
#include "torch_plugin/process_group/start_round.h"

namespace shoal::torch {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {
/// The devices of a barrier. c10d passes only the number of the first one and means this torch's accelerator. A PyTorch built
/// for CUDA also runs on a machine without a GPU: then there is no stream to wait for.
std::vector<c10::Device> devices_of_barrier(const c10d::BarrierOptions& options) {
  if (options.device) return options.device->is_cpu() ? std::vector<c10::Device>{} : std::vector<c10::Device>{*options.device};
  std::vector<c10::Device> devices;
  if (options.device_ids.empty() || at::accelerator::deviceCount() == 0) return devices;
  const std::optional<c10::DeviceType> accelerator = at::getAccelerator();
  if (!accelerator) return devices;
  for (const std::int64_t id : options.device_ids) devices.emplace_back(*accelerator, static_cast<c10::DeviceIndex>(id));
  return devices;
}
}  // namespace

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::barrier(const c10d::BarrierOptions& options) {
  const CallOptions how = call_options(options.timeout);
  for (const c10::Device& device : devices_of_barrier(options)) wait_for_stream(device);
  return start({.type = c10d::OpType::BARRIER,
                .name = "barrier",
                .profiling_title = "shoal:barrier",
                .inputs = {},
                .staging = {},
                .outputs = {},
                .unpack = {}},
               communicator_->barrier_async(how), how);
}

namespace {

constexpr const char* kEverybodyCame = "ok";

std::vector<std::uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }

std::string to_text(milliseconds timeout) { return std::to_string(timeout.count()) + " ms"; }

/// Whether `key` exists by `deadline`. Throws an Interruption if a signal handler raises an exception.
bool arrives(c10d::Store& store, const std::string& key, steady_clock::time_point deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
  return StoreWait(store).arrives(key, std::max(left, milliseconds(0)));
}

[[noreturn]] void fail(const std::string& message) { C10_THROW_ERROR(DistBackendError, message); }

}  // namespace

void ProcessGroupShoal::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  const InterpreterExit leaving;
  check_alive();
  if (estimate_us_) refuse("monitored_barrier", "its time cannot be estimated: it waits for the store");
  const milliseconds timeout = timeout_or_default(options.timeout);
  const steady_clock::time_point deadline = steady_clock::now() + timeout;
  const std::uint64_t number = monitored_barriers_++;
  const auto key = [](std::uint64_t round, const std::string& name) {
    return "shoal/monitored_barrier/" + std::to_string(round) + "/" + name;
  };
  const std::string verdict_key = key(number, "verdict");
  try {
    if (getRank() != 0) {
      store_->set(key(number, std::to_string(getRank())), bytes("here"));
      // Rank 0 waits for the other ranks as long as this rank waits for rank 0, and needs some more time to report the
      // result.
      const bool answered = arrives(*store_, verdict_key, deadline + std::chrono::seconds(2));
      const std::vector<std::uint8_t> verdict =
          answered ? store_->get(verdict_key) : bytes("rank 0 did not answer in " + to_text(timeout));
      if (verdict == bytes(kEverybodyCame)) return;
      fail("Rank " + std::to_string(getRank()) +
           " successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0: " +
           std::string(verdict.begin(), verdict.end()) + ". Please check rank 0 logs for faulty rank.");
    }
    std::vector<std::string> missing;
    for (int rank = 1; rank < getSize(); ++rank) {
      if (timeout <= milliseconds(0)) {  // no time left to wait for another rank
        store_->set(verdict_key, bytes("the timeout of rank 0 has expired"));
        fail("Rank 0 timed out in monitoredBarrier after " + to_text(timeout) + ".");
      }
      if (arrives(*store_, key(number, std::to_string(rank)), deadline)) continue;
      missing.push_back(std::to_string(rank));
      if (!wait_all_ranks) break;
    }
    std::string names;
    for (const std::string& rank : missing) names += (names.empty() ? "" : ", ") + rank;
    if (missing.empty()) {
      store_->set(verdict_key, bytes(kEverybodyCame));
      if (number > 0) {  // all ranks have read the previous verdict
        for (int rank = 1; rank < getSize(); ++rank) store_->deleteKey(key(number - 1, std::to_string(rank)));
        store_->deleteKey(key(number - 1, "verdict"));
      }
      return;
    }
    const std::string complaint =
        (missing.size() == 1 ? "Rank " : "Ranks ") + names + " failed to pass monitoredBarrier in " + to_text(timeout);
    store_->set(verdict_key, bytes(complaint));
    fail(complaint);
  } catch (const Interruption& interruption) {
    const std::string reason = reason_of(interruption);
    communicator_->abort("monitored_barrier: " + reason);
    if (getRank() == 0) store_->set(verdict_key, bytes("rank 0: " + reason));
    std::rethrow_exception(interruption.exception);
  } catch (const c10::DistBackendError&) {
    throw;
  } catch (const std::exception& error) {
    fail("shoal monitored_barrier: the store failed: " + plain_message(error));
  }
}

}  // namespace shoal::torch
