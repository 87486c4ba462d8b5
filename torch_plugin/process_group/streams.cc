// Calls on tensors of CUDA devices where they lie.
#include <utility>

#include <c10/util/Logging.h>

#include "torch_plugin/process_group/arguments.h"
#include "torch_plugin/process_group/conversions.h"
#include "torch_plugin/process_group/process_group_shoal.h"
#include "torch_plugin/process_group/work_stream.h"

namespace shoal::torch {

using at::Tensor;

std::shared_ptr<DeviceStreams> ProcessGroupShoal::streams_for(const char* call, const Tensor& tensor,
                                                              const CallOptions& options) {
  const c10::Device device = tensor.device();
  if (device.is_cpu() || device.type() != options_->cuda_devices || options.estimate_us != nullptr) return nullptr;
  return streams_on(call, device);
}

std::shared_ptr<DeviceStreams> ProcessGroupShoal::streams_on(const char* call, c10::Device device) {
  // Before anything reaches a stream, which would draw others into the graph.
  if (const Status refused = DeviceStreams::check_current_stream(device); !refused.ok()) throw_status(call, refused);
  const std::lock_guard<std::mutex> meeting(meeting_mutex_);
  {
    const std::lock_guard<std::mutex> lock(streams_mutex_);
    const auto known = streams_.find(device.index());
    if (known != streams_.end()) return known->second;
  }
  Result<std::unique_ptr<DeviceStreams>> made = DeviceStreams::create(communicator_, device);
  if (!made.ok()) throw_status(call, made.status());
  const std::lock_guard<std::mutex> lock(streams_mutex_);
  return streams_[device.index()] = std::move(made).value();
}

std::vector<std::shared_ptr<DeviceStreams>> ProcessGroupShoal::all_streams() const {
  std::vector<std::shared_ptr<DeviceStreams>> all;
  const std::lock_guard<std::mutex> lock(streams_mutex_);
  for (const auto& [index, streams] : streams_) {
    if (streams != nullptr) all.push_back(streams);
  }
  return all;
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::start(
    const std::shared_ptr<DeviceStreams>& streams, WorkShoal::Call call, const CallOptions& options,
    const std::function<Result<StreamWork>(StreamCommunicator&, void*)>& make) {
  std::vector<Tensor> memory = call.inputs;
  memory.insert(memory.end(), call.staging.begin(), call.staging.end());
  memory.insert(memory.end(), call.outputs.begin(), call.outputs.end());
  Result<std::shared_ptr<StreamEnd>> made = streams->make(make, call.unpack, memory);
  if (!made.ok()) throw_status(call.name, made.status());
  const std::shared_ptr<StreamEnd> end = std::move(made).value();
  auto [sequence, entry] = note(call, options, {});
  end->set_entry(std::move(entry));
  if (completion_hook_) completion_hook_->follow(*end->result(), call.type, sequence);
  auto work = c10::make_intrusive<WorkStream>(getRank(), call, end, streams);
  streams->follow(end);
  if (coalesced_) coalesced_->works.push_back(work);
  return work;
}

void ProcessGroupShoal::eagerConnectSingleDevice(at::Device device) {
  check_alive();
  if (device.type() == options_->cuda_devices) streams_on("eager_connect_single_device", device);
}

bool ProcessGroupShoal::registerBuffer(const Tensor& tensor) {
  constexpr const char* kCall = "register_buffer";
  check_alive();
  check_tensor(kCall, tensor);
  if (tensor.device().is_cpu() || tensor.device().type() != options_->cuda_devices)
    refuse(kCall, "only supports tensors on CUDA devices; this one is on " + tensor.device().str());
  const std::shared_ptr<DeviceStreams> streams = streams_on(kCall, tensor.device());
  if (streams == nullptr) return false;
  const Status status = streams->register_buffer(tensor);
  if (status.ok()) return true;
  if (status.code() != StatusCode::unsupported && status.code() != StatusCode::system_error) throw_status(kCall, status);
  LOG(INFO) << "shoal: " << status.to_string();
  return false;
}

}  // namespace shoal::torch
