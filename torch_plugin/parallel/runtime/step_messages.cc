#include "torch_plugin/parallel/runtime/step_messages.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "torch_plugin/parallel/runtime/step_error.h"

namespace shoal::parallel {
namespace {

using pipeline::Action;
using pipeline::ActionOp;

// The kinds of message, as their tags tell them apart.
constexpr int kActivation = 0;
constexpr int kGradient = 1;
constexpr int kLayout = 2;
constexpr int kLabels = 3;
constexpr int kKinds = 4;

int kind_of(const Action& action) {
  return action.op == ActionOp::send_activation || action.op == ActionOp::recv_activation ? kActivation : kGradient;
}

using Line = StageStreams::Line;

/// The values of `tensor` in one block of memory, without its graph.
at::Tensor dense_form(const at::Tensor& tensor, at::MemoryFormat format, at::Device memory) {
  return tensor.detach().resolve_conj().resolve_neg().contiguous(format).to(memory);  // no copy where it is so already
}

}  // namespace

StepMessages::StepMessages(Communicator& communicator, StageStreams* streams, const pipeline::Shape& shape,
                           const Microbatches& microbatches, const pipeline::Actions& actions, CutLayouts& layouts,
                           Deadline deadline)
    : communicator_(communicator),
      streams_(streams),
      shape_(shape),
      microbatches_(microbatches),
      actions_(actions),
      layouts_(layouts),
      deadline_(deadline) {}

void StepMessages::start() {
  for (const Action& action : actions_) {
    if (!is_recv(action.op)) continue;
    incoming(action).actions.push_back(action);
    const int cut = cut_of(action);
    if (kind_of(action) == kGradient || layouts_.contains(cut) || announcements_.contains(cut)) continue;
    Announcement& announcement = announcements_[cut];
    announcement.end =
        start_receive(&announcement.layout, sizeof announcement.layout, shape_.rank_of(cut), tag_of(kLayout, 0, cut));
  }
  post_ahead();
}

StepMessages::~StepMessages() {
  for (Incoming& incoming : incoming_) {
    for (Transfer& transfer : incoming.window) let_end(transfer);
  }
  for (Transfer& transfer : taken_) let_end(transfer);
  for (auto& [cut, announcement] : announcements_) static_cast<void>(announcement.end.wait());
  for (Transfer& transfer : sends_) let_end(transfer);
  if (labels_) let_end(*labels_);
}

void StepMessages::let_end(Transfer& transfer) {
  if (!transfer.end.wait().ok() && streams_ != nullptr) streams_->keep(transfer.tensor);
}

int StepMessages::cut_of(const Action& action) { return std::min(action.stage, peer_stage(action)); }

int StepMessages::tag_of(int kind, int microbatch, int cut) const {
  return kind + kKinds * (microbatch + microbatches_.count() * cut);  // below 2^31: pipeline::kMaxActions
}

std::chrono::milliseconds StepMessages::time_left() const {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - std::chrono::steady_clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

StepMessages::Incoming& StepMessages::incoming(const Action& action) {
  return incoming_[static_cast<std::size_t>(kind_of(action))];
}

void StepMessages::start_send(const at::Tensor& tensor, int peer, int tag) {
  Result<Work> work =
      communicator_.send_async(tensor.data_ptr(), tensor.nbytes(), DataType::uint8, peer, tag, {.timeout = time_left()});
  throw_unless_ok(work.status());
  sends_.push_back({tensor, MessageEnd(*std::move(work))});
}

MessageEnd StepMessages::start_receive(void* data, std::size_t bytes, int peer, int tag) {
  Result<Work> work = communicator_.recv_async(data, bytes, DataType::uint8, peer, tag, {.timeout = time_left()});
  throw_unless_ok(work.status());
  return MessageEnd(*std::move(work));
}

void StepMessages::send_labels(const at::Tensor& labels, int rank) {
  start_send(dense_form(labels, labels.suggest_memory_format(), at::kCPU), rank, tag_of(kLabels, 0, 0));
}

void StepMessages::expect_labels(const TensorLayout& layout) {
  labels_.emplace(Transfer{layout.allocate(microbatches_.batch()), {}});
  labels_->end = start_receive(labels_->tensor.data_ptr(), labels_->tensor.nbytes(), 0, tag_of(kLabels, 0, 0));
}

at::Tensor StepMessages::labels() {
  throw_unless_ok(labels_->end.wait());
  return labels_->tensor;
}

void StepMessages::post_ahead() {
  for (Incoming& incoming : incoming_) {
    while (incoming.window.size() < kWindow && incoming.posted < incoming.actions.size()) {
      const Action& action = incoming.actions[incoming.posted];
      const int cut = cut_of(action);
      const auto layout = layouts_.find(cut);
      if (layout == layouts_.end()) break;  // its announcement comes first, or for a gradient this rank's own output
      const int peer = shape_.rank_of(peer_stage(action));
      const int tag = tag_of(kind_of(action), action.microbatch, cut);
      at::Tensor tensor = layout->second.allocate(microbatches_.size(action.microbatch), memory());
      const Line line = kind_of(action) == kActivation ? Line::activations_in : Line::gradients_in;
      MessageEnd end = streams_ == nullptr ? start_receive(tensor.data_ptr(), tensor.nbytes(), peer, tag)
                                           : streams_->receive(line, tensor, peer, tag, time_left());
      incoming.window.push_back({std::move(tensor), std::move(end)});
      ++incoming.posted;
    }
  }
}

void StepMessages::learn(int cut) {
  const auto announcement = announcements_.find(cut);
  if (announcement == announcements_.end()) return;
  throw_unless_ok(announcement->second.end.wait());
  layouts_[cut] = announcement->second.layout;
  announcements_.erase(announcement);
}

at::Tensor StepMessages::receive(const Action& action) {
  Incoming& incoming = this->incoming(action);
  if (kind_of(action) == kActivation) learn(cut_of(action));
  post_ahead();
  Transfer& next = incoming.window.front();
  throw_unless_ok(next.end.precede_next());
  const at::Tensor tensor = next.tensor;
  if (streams_ != nullptr) taken_.push_back(std::move(next));
  incoming.window.pop_front();
  post_ahead();
  return tensor;
}

void StepMessages::announce(int cut, const TensorLayout& layout, int peer) {
  // Kept in a tensor, as the other messages are.
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(sizeof layout)}, at::kByte);
  std::memcpy(bytes.data_ptr(), &layout, sizeof layout);
  start_send(bytes, peer, tag_of(kLayout, 0, cut));
}

void StepMessages::send(const Action& action, const at::Tensor& tensor) {
  const int cut = cut_of(action);
  const int peer = shape_.rank_of(peer_stage(action));
  TensorLayout layout = layout_of(tensor);
  const auto [known, is_new] = layouts_.try_emplace(cut, layout);
  if (is_new) announce(cut, layout, peer);
  layout.memory_format = known->second.memory_format;  // backward chooses any; a dimension of size 1 leaves it open
  TORCH_CHECK_VALUE(layout == known->second, "its output is ", layout.to_string(), ", that of an earlier microbatch ",
                    known->second.to_string(), "; all microbatches need the same");
  const at::Tensor dense = dense_form(tensor, layout.format(), memory());
  const int tag = tag_of(kind_of(action), action.microbatch, cut);
  if (streams_ == nullptr) {
    start_send(dense, peer, tag);
  } else {
    const Line line = kind_of(action) == kActivation ? Line::activations_out : Line::gradients_out;
    sends_.push_back({dense, streams_->send(line, dense, peer, tag, time_left())});
  }
  post_ahead();  // the first output says what its gradient looks like
}

void StepMessages::release_sent() {
  std::erase_if(sends_, [](const Transfer& transfer) { return transfer.end.is_ok(); });
  std::erase_if(taken_, [](const Transfer& transfer) { return transfer.end.is_ok(); });
}

void StepMessages::finish() {
  for (Transfer& transfer : sends_) throw_unless_ok(transfer.end.wait());
  for (Transfer& transfer : taken_) throw_unless_ok(transfer.end.wait());
  sends_.clear();
  taken_.clear();
}

}  // namespace shoal::parallel
