#include "torch_plugin/parallel/runtime/stage_streams.h"

#include <algorithm>
#include <utility>

#include <c10/core/DeviceGuard.h>

#include "torch_plugin/parallel/runtime/step_error.h"

namespace shoal::parallel {
namespace {

/// Streams of torch's pool, which gives the same ones again after some time. A receive blocks its stream, so two lines must not
/// share one.
std::vector<c10::Stream> different_streams(const c10::impl::VirtualGuardImpl& guard, c10::Device device, std::size_t count) {
  constexpr int kMostTries = 100;
  std::vector<c10::Stream> found;
  for (int tries = 0; found.size() < count && tries < kMostTries; ++tries) {
    const c10::Stream next = guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true);
    if (std::find(found.begin(), found.end(), next) == found.end()) found.push_back(next);
  }
  TORCH_CHECK(found.size() == count, "pipeline: ", device, " has fewer than ", count, " streams; use messages = host_memory");
  return found;
}

std::unique_ptr<StreamCommunicator> open(Communicator& communicator, c10::Device device) {
  const c10::DeviceGuard here(device);
  Result<std::unique_ptr<StreamCommunicator>> made = StreamCommunicator::create(communicator);
  throw_unless_ok(made.status());
  return std::move(made).value();
}

}  // namespace

StageStreams::StageStreams(Communicator& communicator, c10::Device device)
    : guard_(device.type()),
      lines_(different_streams(guard_, device, kLines)),
      ready_(device.type()),
      communicator_(open(communicator, device)) {}

StageStreams::~StageStreams() {
  const c10::DeviceGuard here(device());
  communicator_.reset();
}

MessageEnd StageStreams::send(Line line, const at::Tensor& tensor, int peer, int tag, std::chrono::milliseconds timeout) {
  return start(line, Request::send(tensor.data_ptr(), tensor.nbytes(), DataType::uint8, peer, tag), timeout);
}

MessageEnd StageStreams::receive(Line line, const at::Tensor& tensor, int peer, int tag, std::chrono::milliseconds timeout) {
  return start(line, Request::recv(tensor.data_ptr(), tensor.nbytes(), DataType::uint8, peer, tag), timeout);
}

void StageStreams::keep(const at::Tensor& tensor) const {
  if (tensor.device() != device()) return;
  for (const c10::Stream& line : lines_) guard_.recordDataPtrOnStream(tensor.storage().data_ptr(), line);
}

MessageEnd StageStreams::start(Line line, const Request& request, std::chrono::milliseconds timeout) {
  const c10::DeviceGuard here(device());
  const c10::Stream& stream = lines_[static_cast<std::size_t>(line)];
  ready_.record(guard_.getStream(device()));  // for a receive too: the allocator may have given it memory that is still read
  ready_.block(stream);
  Result<StreamWork> work = communicator_->submit(request, stream.native_handle(), timeout);
  throw_unless_ok(work.status());
  return {std::move(work).value(), device()};
}

}  // namespace shoal::parallel
