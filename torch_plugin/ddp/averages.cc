#include "torch_plugin/ddp/averages.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <utility>

namespace shoal::ddp {
namespace {

using std::chrono::steady_clock;

constexpr std::size_t kWord = std::numeric_limits<std::size_t>::max();  // not a bucket: rank 0's wished fraction
constexpr int kChoosingRank = 0;

}  // namespace

Averages::Averages(Group group, double scale, std::size_t window, std::size_t piece_bytes, std::size_t longest_piece_bytes)
    : scale_(scale),
      piece_bytes_(piece_bytes),
      longest_piece_bytes_(longest_piece_bytes),
      shared_(std::make_shared<Shared>(std::move(group), window)) {}

Averages::~Averages() {
  Group last;  // released here without the lock, and not by a callback in a thread of the backend
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
  double share = 0;
  {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->failure) std::rethrow_exception(shared_->failure);
    number = shared_->buckets++;
    share = shared_->backward_fraction;
    if (number == 0) {
      const double wish = better_share(share, shared_->watch.begin(steady_clock::now()));
      if (bucket.is_cpu()) shared_->add_word(wish);
    }
  }
  PieceQueue::Pieces later;
  for (std::int64_t at = 0; at < bucket.numel(); at += most) {
    const std::int64_t elements = std::min(most, bucket.numel() - at);
    at::Tensor values = bucket.narrow(0, at, elements);
    values.mul_(scale_);
    const bool first = static_cast<double>(at) < share * static_cast<double>(bucket.numel());
    {
      const std::lock_guard lock(shared_->mutex);
      const auto piece_bytes = static_cast<double>(values.nbytes());
      shared_->watch.add(piece_bytes, first ? piece_bytes : 0);
      const std::size_t piece = shared_->pieces.size();
      shared_->pieces.push_back({{number, at, elements}, std::move(values)});
      if (first) {
        shared_->queue.add({piece});
      } else {
        later.push_back(piece);
      }
    }
    if (first) start_pieces(shared_);  // start now, so that the wire does not wait until the rest is scaled
  }
  const std::lock_guard lock(shared_->mutex);
  shared_->queue.hold(std::move(later));
  return number;
}

/// A sum with zeros of the other ranks, so that every rank gets exactly rank 0's number.
void Averages::Shared::add_word(double wished_share) {
  word = at::full({1}, group->getRank() == kChoosingRank ? wished_share : 0.0, at::kDouble);
  queue.add({pieces.size()});
  pieces.push_back({{kWord, 0, 1}, word});
}

void Averages::release() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->watch.end_backward(steady_clock::now());
    shared_->queue.release();
  }
  start_pieces(shared_);
}

std::vector<Averages::Part> Averages::take_finished(bool wait) {
  std::vector<Part> taken;
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> on_device;
  {
    std::unique_lock lock(shared_->mutex);
    if (wait) shared_->changed.wait(lock, [&] { return shared_->failure || !shared_->finished.empty(); });
    if (shared_->failure) std::rethrow_exception(shared_->failure);
    std::swap(taken, shared_->finished);
    std::swap(on_device, shared_->on_device);
  }
  for (const auto& sum : on_device) sum->wait();  // the current stream waits, the host does not
  return taken;
}

void Averages::restart() {
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait(lock, [&] { return shared_->failure || !shared_->word.defined(); });
  if (shared_->failure) return;  // pieces may still be in flight
  shared_->pieces.clear();
  shared_->buckets = 0;
  shared_->backward_fraction = shared_->agreed_share;  // not earlier: ranks receive the agreed share at different times
}

double Averages::backward_fraction() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->backward_fraction;
}

/// Only one thread at a time starts pieces, without the lock: this keeps the order, and a piece may end at once.
void Averages::start_pieces(const std::shared_ptr<Shared>& shared) {
  std::unique_lock lock(shared->mutex);
  if (std::exchange(shared->starting, true)) return;  // the other thread also starts the new pieces
  while (!shared->failure && !shared->stopping) {
    const std::optional<std::size_t> piece = shared->queue.next();
    if (!piece) break;
    std::vector<at::Tensor> values{shared->pieces[*piece].values};
    shared->watch.started(steady_clock::now());
    c10d::ProcessGroup& group = *shared->group;  // stays while `starting` is set
    lock.unlock();
    try {
      group.allreduce(values)->getFuture()->addCallback([shared, piece = *piece](c10::ivalue::Future& sum) {
        end_piece(shared, piece, c10::intrusive_ptr<c10::ivalue::Future>::reclaim_copy(&sum),
                  sum.hasError() ? sum.exception_ptr() : nullptr);
      });
    } catch (...) {
      end_piece(shared, *piece, {}, std::current_exception());
    }
    lock.lock();
  }
  shared->starting = false;
  if (shared->stopping) shared->changed.notify_all();
}

void Averages::end_piece(const std::shared_ptr<Shared>& shared, std::size_t piece,
                         const c10::intrusive_ptr<c10::ivalue::Future>& sum, std::exception_ptr failure) {
  {
    const std::lock_guard lock(shared->mutex);
    shared->queue.ended();
    const Piece& ended = shared->pieces[piece];
    const bool is_word = ended.part.bucket == kWord;
    shared->watch.ended(steady_clock::now(), is_word ? 0 : static_cast<double>(ended.values.nbytes()));
    if (failure) {
      if (!shared->failure) shared->failure = std::move(failure);
    } else if (is_word) {
      shared->agreed_share = std::exchange(shared->word, {}).item<double>();
    } else {
      shared->finished.push_back(ended.part);
      if (!ended.values.is_cpu()) shared->on_device.push_back(sum);
    }
    shared->changed.notify_all();
  }
  start_pieces(shared);
}

}  // namespace shoal::ddp
