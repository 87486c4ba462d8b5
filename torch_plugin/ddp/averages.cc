#include "torch_plugin/ddp/averages.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace shoal::ddp {
namespace {

// Five eighths, a little less than backward's part of a step's computing (two thirds): what has not left by the end of backward
// stands before what the next forward needs first.
bool goes_at_once(std::int64_t at, std::int64_t elements) { return 8 * at < 5 * elements; }

}  // namespace

Averages::Averages(Group group, double scale, std::size_t window, std::size_t piece_bytes, std::size_t longest_piece_bytes)
    : scale_(scale),
      piece_bytes_(piece_bytes),
      longest_piece_bytes_(longest_piece_bytes),
      shared_(std::make_shared<Shared>(std::move(group), window)) {}

Averages::~Averages() {
  Group last;  // given back here, not by a callback in a backend's thread, and without the lock
  std::unique_lock lock(shared_->mutex);
  shared_->stopping = true;
  shared_->changed.wait(lock, [&] { return !shared_->starting; });
  std::swap(last, shared_->group);
  lock.unlock();
}

std::size_t Averages::add(const at::Tensor& bucket) {
  const at::NoGradGuard no_grad;
  const std::size_t bytes = std::clamp(bucket.nbytes() / 4, piece_bytes_, longest_piece_bytes_);
  const auto most = std::max<std::int64_t>(static_cast<std::int64_t>(bytes) / bucket.element_size(), 1);
  std::size_t number = 0;
  {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->failure) std::rethrow_exception(shared_->failure);
    number = shared_->buckets++;
  }
  PieceQueue::Pieces later;
  for (std::int64_t at = 0; at < bucket.numel(); at += most) {
    const std::int64_t elements = std::min(most, bucket.numel() - at);
    at::Tensor values = bucket.narrow(0, at, elements);
    values.mul_(scale_);
    const bool first = goes_at_once(at, bucket.numel());
    {
      const std::lock_guard lock(shared_->mutex);
      const std::size_t piece = shared_->pieces.size();
      shared_->pieces.push_back({{number, at, elements}, std::move(values)});
      if (first) {
        shared_->queue.add({piece});
      } else {
        later.push_back(piece);
      }
    }
    if (first) start_pieces(shared_);  // the wire need not wait until the rest is scaled
  }
  const std::lock_guard lock(shared_->mutex);
  shared_->queue.hold(std::move(later));
  return number;
}

void Averages::release() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->queue.release();
  }
  start_pieces(shared_);
}

std::vector<Averages::Part> Averages::take_finished(bool wait) {
  std::unique_lock lock(shared_->mutex);
  if (wait) shared_->changed.wait(lock, [&] { return shared_->failure || !shared_->finished.empty(); });
  if (shared_->failure) std::rethrow_exception(shared_->failure);
  return std::exchange(shared_->finished, {});
}

void Averages::restart() {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->failure) return;  // pieces may still be in flight
  shared_->pieces.clear();
  shared_->buckets = 0;
}

/// One thread at a time does it, without the lock: that keeps the order, and a piece may end at once.
void Averages::start_pieces(const std::shared_ptr<Shared>& shared) {
  std::unique_lock lock(shared->mutex);
  if (std::exchange(shared->starting, true)) return;  // that thread sees what is new
  while (!shared->failure && !shared->stopping) {
    const std::optional<std::size_t> piece = shared->queue.next();
    if (!piece) break;
    std::vector<at::Tensor> values{shared->pieces[*piece].values};
    c10d::ProcessGroup& group = *shared->group;  // stays while `starting` is set
    lock.unlock();
    try {
      group.allreduce(values)->getFuture()->addCallback([shared, piece = *piece](c10::ivalue::Future& sum) {
        end_piece(shared, piece, sum.hasError() ? sum.exception_ptr() : nullptr);
      });
    } catch (...) {
      end_piece(shared, *piece, std::current_exception());
    }
    lock.lock();
  }
  shared->starting = false;
  if (shared->stopping) shared->changed.notify_all();
}

void Averages::end_piece(const std::shared_ptr<Shared>& shared, std::size_t piece, std::exception_ptr failure) {
  {
    const std::lock_guard lock(shared->mutex);
    shared->queue.ended();
    if (failure) {
      if (!shared->failure) shared->failure = std::move(failure);
      shared->changed.notify_all();
    } else {
      shared->finished.push_back(shared->pieces[piece].part);
      shared->changed.notify_all();
    }
  }
  start_pieces(shared);
}

}  // namespace shoal::ddp
