// Averages of gradients under way, in lanes of different urgency.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "torch_plugin/ddp/lane_queue.h"

namespace shoal::ddp {

/// Sums buckets over all ranks, piece by piece; every end of a piece starts the next one. Each lane of the LaneQueue is a
/// process group of its own, because calls of one group must be in the same order on every rank and those of two groups need
/// not.
///
/// The first failure stays: nothing starts any more, and take_finished() throws it.
/// Thread rule: one thread calls; the backends' threads, in which pieces end, are its own matter.
class Averages {
 public:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

  /// `lanes`: groups over the same ranks, the most urgent first. At most `window` pieces of at most `piece_bytes` bytes are in
  /// flight in each.
  Averages(std::vector<Group> lanes, std::size_t window, std::size_t piece_bytes);
  /// Does not wait for what is in flight, which holds its own memory; starts nothing any more.
  ~Averages();
  Averages(const Averages&) = delete;
  Averages& operator=(const Averages&) = delete;

  /// Sums up `bucket`, a vector, in place, as soon as `lane` allows. Collective by lane: the same buckets in the same order.
  /// Returns the bucket's number: 0, 1, ... Throws the failure.
  std::size_t add(const at::Tensor& bucket, std::size_t lane);
  /// The numbers of the buckets that have been finished since the last call; blocks until there is one. Only while some are not
  /// finished. Throws the failure.
  std::vector<std::size_t> take_finished();
  /// The next bucket is number 0 again. Only when all have been taken, or after a failure.
  void restart();

 private:
  struct Piece {
    std::size_t bucket;
    at::Tensor values;
  };
  /// What the threads share; callbacks of pieces in flight keep it alive.
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<Group> lanes;
    LaneQueue queue;
    std::vector<Piece> pieces;
    std::vector<std::size_t> pieces_left;  // by bucket
    std::vector<std::size_t> finished;     // not yet taken
    std::exception_ptr failure;
    bool starting = false;  // a thread is in start_pieces
    bool stopping = false;  // the destructor waits for that thread

    Shared(std::vector<Group> groups, std::size_t window) : lanes(std::move(groups)), queue(lanes.size(), window) {}
  };

  static void start_pieces(const std::shared_ptr<Shared>& shared);
  static void end_piece(const std::shared_ptr<Shared>& shared, LaneQueue::Piece piece, std::exception_ptr failure);

  const std::size_t piece_bytes_;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace shoal::ddp
