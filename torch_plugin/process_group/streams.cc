// Calls on CUDA tensors in device memory.
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
  // Checked before any work reaches a stream, because that would draw other streams into the graph.
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

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::start(const std::shared_ptr<DeviceStreams>& streams, WorkShoal::Call call,
                                                        const CallOptions& options, const CallOnStream& on_stream) {
  auto work = c10::make_intrusive<WorkStream>(getRank(), call, streams);
  const char* const name = call.name;
  start(streams, name, {{std::move(call), work, {}}}, options, on_stream);
  if (coalesced_) coalesced_->works.push_back(work);
  return work;
}

void ProcessGroupShoal::start(const std::shared_ptr<DeviceStreams>& streams, const char* name,
                              const std::vector<OnStream>& calls, const CallOptions& options, const CallOnStream& on_stream) {
  std::vector<Tensor> memory;
  std::vector<std::function<void()>> unpacks;
  for (const OnStream& each : calls) {
    memory = concat(concat(concat(std::move(memory), each.call.inputs), each.call.staging), each.call.outputs);
    if (each.call.unpack) unpacks.push_back(each.call.unpack);
  }
  Result<std::shared_ptr<StreamEnd>> made = streams->make(on_stream, unpacks, memory);
  if (!made.ok()) throw_status(name, made.status());
  const std::shared_ptr<StreamEnd> end = std::move(made).value();
  end->keep(CallsInFlight::add([group = std::weak_ptr<DeviceStreams>(streams)](const std::string& reason) {
    if (const std::shared_ptr<DeviceStreams> open = group.lock()) open->abort(reason);
  }));
  for (const OnStream& each : calls) {
    auto [sequence, entry] = note(each.call, options);
    end->add_entry(std::move(entry));
    if (completion_hook_) completion_hook_->follow(*end->result(), each.call.type, sequence);
    each.work->follow(end);
  }
  streams->follow(end);
}

void ProcessGroupShoal::eagerConnectSingleDevice(at::Device device) {
  check_alive();
  if (device.type() != options_->cuda_devices || streams_on("eager_connect_single_device", device) == nullptr) return;
  const std::lock_guard<std::mutex> lock(streams_mutex_);
  if (!connected_) connected_ = device;
}

std::shared_ptr<DeviceStreams> ProcessGroupShoal::streams_for_message(const char* call, const Tensor& tensor,
                                                                      const CallOptions& options) {
  const c10::Device device = tensor.device();
  std::optional<c10::Device> connected;
  {
    const std::lock_guard<std::mutex> lock(streams_mutex_);
    connected = connected_;
  }
  if (!connected || device.type() != connected->type()) return nullptr;
  // The peer, whose tensor is on its own device, would wait on a stream.
  if (device != *connected)
    refuse(call, "this group's device is " + connected->str() + " (device_id of init_process_group), the tensor is on " +
                     device.str());
  return streams_for(call, tensor, options);
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
