// Batches, prepared in advance by threads.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "bench/train/data/dataset.h"

namespace shoal::data {

/// Images ready for the network, NCHW, and their labels.
struct Batch {
  std::vector<float> images;
  std::vector<std::int64_t> labels;
  [[nodiscard]] std::size_t size() const { return labels.size(); }
};

/// The batches that a loader makes.
struct LoaderOptions {
  std::vector<std::size_t> order;  ///< indices into the data set, in the order of use
  std::size_t batch = 1;           ///< images in a batch; the last one may have fewer
  bool augment = false;
  std::uint64_t seed = 0;   ///< of the augmentation
  std::uint64_t epoch = 0;  ///< part of the augmentation's seed
  std::size_t workers = 1;  ///< threads, at least one
};

/// Returns the batches of one epoch in order. They do not depend on the number of workers, which stay a few batches ahead.
/// Thread rule: next() by one thread at a time. `dataset` must outlive the loader.
class Loader {
 public:
  Loader(const Dataset& dataset, LoaderOptions options);
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;
  ~Loader();

  /// Batches in the epoch.
  [[nodiscard]] std::size_t batches() const { return (options_.order.size() + options_.batch - 1) / options_.batch; }
  /// The next batch; nothing after the last one.
  std::optional<Batch> next();

 private:
  void work();

  const Dataset& dataset_;
  const LoaderOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::optional<Batch>> ready_;  // batch i at index i modulo the size
  std::size_t begun_ = 0;
  std::size_t taken_ = 0;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

/// One batch, made in the calling thread: images order[first .. first+count) of the data set.
Batch make_batch(const Dataset& dataset, const LoaderOptions& options, std::size_t first, std::size_t count);

}  // namespace shoal::data
