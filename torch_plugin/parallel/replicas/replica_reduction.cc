#include "torch_plugin/parallel/replicas/replica_reduction.h"

#include <exception>
#include <utility>

#include <torch/csrc/distributed/c10d/comm.hpp>

namespace shoal::parallel {

ReplicaReduction::ReplicaReduction(const std::vector<std::shared_ptr<Unit>>& chunks, Group replicas, const BucketSizes& sizes)
    : chunks_(chunks), replicas_(std::move(replicas)) {
  for (const std::shared_ptr<Unit>& chunk : chunks_) {
    averages_.push_back(std::make_unique<ddp::DataParallel>(
        *chunk, replicas_,
        ddp::DataParallelOptions{
            .bucket_mib = sizes.bucket_mib,
            .first_bucket_mib = sizes.first_bucket_mib,
            .broadcast_buffers = false,  // in training no result depends on them
            .comm_hook = [this](const Group& /*group*/, c10d::GradBucket& bucket) { return start(bucket); }}));
  }
}

ReplicaReduction::~ReplicaReduction() {
  if (!in_flight_.empty()) abort("the reduction of the gradients was destroyed");
}

/// The reducer takes the bucket for averaged, so that backward does not wait. It reads nothing before finish_step(), because
/// the gradients are views of the bucket.
c10::intrusive_ptr<c10::ivalue::Future> ReplicaReduction::start(c10d::GradBucket& bucket) {
  const at::NoGradGuard no_grad;
  at::Tensor gradients = bucket.getBuffer();
  bytes_ += gradients.nbytes();
  gradients.mul_(1.0 / replicas_->getSize());
  std::vector<at::Tensor> tensors{gradients};
  in_flight_.push_back(replicas_->allreduce(tensors));
  auto filled = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
  filled->markCompleted(c10::IValue(std::move(gradients)));
  return filled;
}

void ReplicaReduction::begin_step(std::int64_t images) {
  for (const auto& average : averages_) average->before_forward();
  bytes_ = 0;
  const at::TensorOptions options = at::TensorOptions(at::kLong).device(chunks_.front()->parameters().front().device());
  std::vector<at::Tensor> mine{at::full({1}, images, options)};
  std::vector<std::vector<at::Tensor>> all(1);
  for (int replica = 0; replica < replicas_->getSize(); ++replica) all[0].push_back(at::empty({1}, options));
  images_ = all[0];
  in_flight_.push_back(replicas_->allgather(all, mine));
}

void ReplicaReduction::check_images() const {
  const auto first = images_[0].item<std::int64_t>();
  for (std::size_t replica = 1; replica < images_.size(); ++replica) {
    const auto other = images_[replica].item<std::int64_t>();
    TORCH_CHECK_VALUE(other == first, "replica 0 has a batch of ", first, " images, replica ", replica, " one of ", other,
                      "; all replicas need equally many");
  }
}

void ReplicaReduction::before_last_backward(int chunk) { averages_[static_cast<std::size_t>(chunk)]->before_backward(); }

void ReplicaReduction::finish_step() {
  while (!in_flight_.empty()) {
    in_flight_.back()->wait();
    in_flight_.pop_back();
  }
  check_images();
  check_gradients();
}

/// The reducer waits for the rest of a bucket forever.
void ReplicaReduction::check_gradients() const {
  std::size_t expected = 0;
  for (const auto& average : averages_) expected += average->gradient_bytes();
  if (bytes_ == expected) return;
  std::string names;
  for (const std::shared_ptr<Unit>& chunk : chunks_) {
    for (const auto& named : chunk->named_parameters()) {
      if (named.value().requires_grad() && !named.value().grad().defined()) names += " " + named.key();
    }
  }
  TORCH_CHECK_VALUE(false, "of ", expected, " bytes of gradients ", bytes_,
                    " were complete: each parameter needs one in every ",
                    "step; without any:", names.empty() ? " none" : names);
}

void ReplicaReduction::abort(const std::string& /*reason*/) noexcept {
  const auto quietly = [](const auto& call) {
    try {
      call();
    } catch (const std::exception&) {  // the step has failed already
    }
  };
  quietly([&] { replicas_->abort(); });
  for (const auto& work : in_flight_) quietly([&] { work->wait(); });  // the memory of the buckets is theirs until they end
  in_flight_.clear();
}

void ReplicaReduction::clear_gradients() {
  const at::NoGradGuard no_grad;
  for (const std::shared_ptr<Unit>& chunk : chunks_) chunk->zero_grad(/*set_to_none=*/false);
}

void ReplicaReduction::synchronize_buffers() {
  constexpr std::size_t kPieceBytes = std::size_t{250} << 20;  // as in torch
  std::vector<at::Tensor> buffers;
  for (const std::shared_ptr<Unit>& chunk : chunks_) {
    for (const at::Tensor& buffer : chunk->buffers()) buffers.push_back(buffer.detach());
  }
  if (!buffers.empty()) c10d::broadcast_coalesced(replicas_, buffers, kPieceBytes);
}

}  // namespace shoal::parallel
