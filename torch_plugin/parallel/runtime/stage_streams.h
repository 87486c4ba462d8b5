// StageStreams: messages between stages in the order of streams of a CUDA device.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <shoal/communicator.h>
#include <shoal/cuda.h>

#include "torch_plugin/parallel/runtime/message_end.h"

namespace shoal::parallel {

/// The messages of one rank. Each line has a stream, in which its messages follow each other, as a receive that waits for its
/// message blocks the stream: a line is the activations or the gradients that come or go. So the two ranks at the ends of a
/// line must post its messages in the same order; pipeline::VerifyOptions::pairs_in_order proves that they can. Thread rule:
/// one thread.
class StageStreams {
 public:
  enum class Line : std::uint8_t { activations_out, activations_in, gradients_out, gradients_in };
  static constexpr std::size_t kLines = 4;

  /// Collective over `communicator`, which must outlive the object; `device` is that of this rank's stages. Throws CallError as
  /// StreamCommunicator::create(), and c10::Error where the device has too few streams.
  StageStreams(Communicator& communicator, c10::Device device);
  /// Waits until the other ranks destroy theirs, as that of StreamCommunicator does.
  ~StageStreams();
  StageStreams(const StageStreams&) = delete;
  StageStreams& operator=(const StageStreams&) = delete;

  [[nodiscard]] c10::Device device() const { return lines_[0].device(); }
  /// A message begins after what the current stream of the device has been given so far. `tensor`, dense and of the device,
  /// must be kept until the end; if that is a failure, keep() it. Throws CallError.
  MessageEnd send(Line line, const at::Tensor& tensor, int peer, int tag, std::chrono::milliseconds timeout);
  MessageEnd receive(Line line, const at::Tensor& tensor, int peer, int tag, std::chrono::milliseconds timeout);
  /// The memory of `tensor` is not reused before all lines have finished what they hold: a failed message may still use it.
  void keep(const at::Tensor& tensor) const;
  [[nodiscard]] Status status() const { return communicator_->status(); }

 private:
  MessageEnd start(Line line, const Request& request, std::chrono::milliseconds timeout);

  const c10::impl::VirtualGuardImpl guard_;
  const std::vector<c10::Stream> lines_;
  c10::Event ready_;  // the position of the current stream
  std::unique_ptr<StreamCommunicator> communicator_;
};

}  // namespace shoal::parallel
