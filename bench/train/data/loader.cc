#include "bench/train/data/loader.h"

#include <algorithm>
#include <utility>

#include <sys/resource.h>
#include <unistd.h>

#include "bench/train/data/augment.h"

namespace shoal::data {
namespace {

constexpr std::size_t kBatchesAhead = 4;
constexpr int kNiceness = 10;

}  // namespace

Batch make_batch(const Dataset& dataset, const LoaderOptions& options, std::size_t first, std::size_t count) {
  Batch batch;
  batch.images.resize(count * dataset.image_bytes());
  batch.labels.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t index = options.order[first + i];
    const Augmentation augmentation =
        options.augment ? draw_augmentation(SplitMix(options.seed, options.epoch, index)) : Augmentation{};
    render(dataset, index, augmentation, batch.images.data() + i * dataset.image_bytes());
    batch.labels.push_back(dataset.labels[index]);
  }
  return batch;
}

Loader::Loader(const Dataset& dataset, LoaderOptions options)
    : dataset_(dataset), options_(std::move(options)), ready_(std::max(kBatchesAhead, 2 * options_.workers)) {
  for (std::size_t i = 0; i < options_.workers; ++i) workers_.emplace_back([this] { work(); });
}

Loader::~Loader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Loader::work() {
  // Lower priority than training and communication, which lose more by waiting; when they have no images left, they sleep.
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNiceness);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || begun_ == batches() || begun_ < taken_ + ready_.size(); });
    if (stop_ || begun_ == batches()) return;
    const std::size_t number = begun_++;
    const std::size_t first = number * options_.batch;
    lock.unlock();
    Batch batch = make_batch(dataset_, options_, first, std::min(options_.batch, options_.order.size() - first));
    lock.lock();
    ready_[number % ready_.size()] = std::move(batch);
    changed_.notify_all();
  }
}

std::optional<Batch> Loader::next() {
  std::optional<Batch> batch;
  {
    std::unique_lock lock(mutex_);
    if (taken_ == batches()) return std::nullopt;
    std::optional<Batch>& place = ready_[taken_ % ready_.size()];
    changed_.wait(lock, [&] { return place.has_value(); });
    batch.swap(place);
    ++taken_;
  }
  changed_.notify_all();
  return batch;
}

}  // namespace shoal::data
