#include "torch_plugin/ddp/averages.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace shoal::ddp {

Averages::Averages(Group group, std::size_t window, std::size_t piece_bytes)
    : piece_bytes_(piece_bytes), shared_(std::make_shared<Shared>(std::move(group), window)) {}

Averages::~Averages() {
  Group last;  // given back here, not by a callback in a backend's thread, and without the lock
  std::unique_lock lock(shared_->mutex);
  shared_->stopping = true;
  shared_->changed.wait(lock, [&] { return !shared_->starting; });
  std::swap(last, shared_->group);
  lock.unlock();
}

std::size_t Averages::add(const at::Tensor& bucket) {
  const auto most = std::max<std::int64_t>(static_cast<std::int64_t>(piece_bytes_) / bucket.element_size(), 1);
  std::size_t number = 0;
  {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->failure) std::rethrow_exception(shared_->failure);
    number = shared_->pieces_left.size();
    PieceQueue::Pieces now;
    PieceQueue::Pieces later;
    for (std::int64_t at = 0; at < bucket.numel(); at += most) {
      (2 * at < bucket.numel() ? now : later).push_back(shared_->pieces.size());
      shared_->pieces.push_back({number, bucket.narrow(0, at, std::min(most, bucket.numel() - at))});
    }
    shared_->pieces_left.push_back(now.size() + later.size());
    shared_->queue.add(now);
    shared_->queue.hold(std::move(later));
  }
  start_pieces(shared_);
  return number;
}

void Averages::release() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->queue.release();
  }
  start_pieces(shared_);
}

std::vector<std::size_t> Averages::take_finished() {
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait(lock, [&] { return shared_->failure || !shared_->finished.empty(); });
  if (shared_->failure) std::rethrow_exception(shared_->failure);
  return std::exchange(shared_->finished, {});
}

void Averages::restart() {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->failure) return;  // pieces may still be in flight
  shared_->pieces.clear();
  shared_->pieces_left.clear();
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
      const std::size_t bucket = shared->pieces[piece].bucket;
      if (--shared->pieces_left[bucket] == 0) {
        shared->finished.push_back(bucket);
        shared->changed.notify_all();
      }
    }
  }
  start_pieces(shared);
}

}  // namespace shoal::ddp
