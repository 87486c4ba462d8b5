// StepMessages: the messages of one rank in one step.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include <shoal/communicator.h>

#include "src/pipeline/action.h"
#include "torch_plugin/parallel/runtime/message_end.h"
#include "torch_plugin/parallel/runtime/microbatches.h"
#include "torch_plugin/parallel/runtime/stage_streams.h"
#include "torch_plugin/parallel/runtime/tensor_layout.h"

namespace shoal::parallel {

/// Layouts of the activations that cross the cuts of this rank (and of their gradients), as far as they are known; cut c is
/// behind stage c. The rank before a cut learns the layout from its first output and sends it once, ahead of the activation.
using CutLayouts = std::map<int, TensorLayout>;

/// Receives are posted ahead: up to kWindow activations and gradients each. No send is waited for before finish(); each keeps
/// its tensor until it has ended. Messages are told apart by tags, so that no order between cuts matters: schedules that are
/// proven with SendRule::returns_at_once cannot deadlock.
///
/// With `streams`, activations and gradients are in device memory and travel in the order of streams, so the host does not wait
/// for the device; schedules need VerifyOptions::pairs_in_order. Labels and layouts always go through host memory.
///
/// Errors of calls are thrown as CallError. The communicator must be closed before an object is destroyed without finish():
/// the destructor waits for the calls in flight. Thread rule: one thread.
class StepMessages {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  /// `actions`, `microbatches`, `layouts` and `streams`, which may be null, must outlive the object.
  StepMessages(Communicator& communicator, StageStreams* streams, const pipeline::Shape& shape,
               const Microbatches& microbatches, const pipeline::Actions& actions, CutLayouts& layouts, Deadline deadline);
  ~StepMessages();
  StepMessages(const StepMessages&) = delete;
  StepMessages& operator=(const StepMessages&) = delete;

  /// Posts the first receives.
  void start();
  /// The targets of the whole batch, from rank 0 to `rank`, which calls expect_labels() and then labels().
  void send_labels(const at::Tensor& labels, int rank);
  void expect_labels(const TensorLayout& layout);
  at::Tensor labels();

  /// The tensor of `action`, which must be the next receive of its kind in the actions.
  at::Tensor receive(const pipeline::Action& action);
  /// Throws c10::ValueError where the tensor has another layout than those before it over the same cut.
  void send(const pipeline::Action& action, const at::Tensor& tensor);
  /// Frees the tensors of sends that have ended.
  void release_sent();
  /// Waits for all sends, and on streams for all receives.
  void finish();
  /// That of the streams; without them ok.
  [[nodiscard]] Status status() const { return streams_ == nullptr ? Status() : streams_->status(); }

 private:
  static constexpr std::size_t kWindow = 2;

  struct Transfer {
    at::Tensor tensor;
    MessageEnd end;
  };
  struct Announcement {  // the layout of a cut, on its way
    TensorLayout layout;
    MessageEnd end;
  };
  /// The receives of one kind.
  struct Incoming {
    pipeline::Actions actions;    // of the whole step, in order
    std::size_t posted = 0;       // how many of them have been posted
    std::deque<Transfer> window;  // posted, not taken yet
  };

  [[nodiscard]] static int cut_of(const pipeline::Action& action);
  [[nodiscard]] int tag_of(int kind, int microbatch, int cut) const;
  [[nodiscard]] std::chrono::milliseconds time_left() const;
  [[nodiscard]] Incoming& incoming(const pipeline::Action& action);
  [[nodiscard]] at::Device memory() const { return streams_ == nullptr ? at::Device(at::kCPU) : streams_->device(); }
  void start_send(const at::Tensor& tensor, int peer, int tag);
  MessageEnd start_receive(void* data, std::size_t bytes, int peer, int tag);
  void announce(int cut, const TensorLayout& layout, int peer);
  void learn(int cut);
  /// Waits until the message has ended; one that has failed keeps its memory for the streams.
  void let_end(Transfer& transfer);
  void post_ahead();

  Communicator& communicator_;
  StageStreams* const streams_;
  const pipeline::Shape& shape_;
  const Microbatches& microbatches_;
  const pipeline::Actions& actions_;
  CutLayouts& layouts_;
  const Deadline deadline_;
  std::array<Incoming, 2> incoming_;           // activations, gradients
  std::map<int, Announcement> announcements_;  // to this rank, by cut
  std::deque<Transfer> sends_;
  std::deque<Transfer> taken_;  // receives on streams that the host has not seen end
  std::optional<Transfer> labels_;
};

}  // namespace shoal::parallel
