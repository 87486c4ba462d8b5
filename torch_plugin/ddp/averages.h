// Averages of gradients under way.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "torch_plugin/ddp/piece_queue.h"

namespace shoal::ddp {

/// Sums buckets over all ranks, piece by piece; every end of a piece starts the next one.
///
/// Of each bucket the first half goes as soon as there is room, and the second when release() is called, that of the last
/// bucket first. So about half of a gradient travels beside backward, in backward's order, and the other half beside the next
/// forward, in the order in which that needs it, without a word between the ranks about it. (Priority by layer, which each rank
/// would apply by itself, was slower: ranks that are not equally far hold each other's window.)
///
/// The first failure stays: nothing starts any more, and take_finished() throws it.
///
/// Sources of the idea: Jayarajan et al., "Priority-based parameter propagation for distributed DNN training" (P3), MLSys 2019;
/// Peng et al., "A generic communication scheduler for distributed DNN training acceleration" (ByteScheduler), SOSP 2019.
/// Thread rule: one thread calls; the backend's threads, in which pieces end, are its own matter.
class Averages {
 public:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

  /// At most `window` pieces of at most `piece_bytes` bytes are in flight.
  Averages(Group group, std::size_t window, std::size_t piece_bytes);
  /// Does not wait for what is in flight, which holds its own memory; starts nothing any more.
  ~Averages();
  Averages(const Averages&) = delete;
  Averages& operator=(const Averages&) = delete;

  /// Sums up `bucket`, a vector, in place. Collective: the same buckets and releases in the same order. Returns the bucket's
  /// number: 0, 1, ... Throws the failure.
  std::size_t add(const at::Tensor& bucket);
  /// Lets the second halves go.
  void release();
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
    Group group;
    PieceQueue queue;
    std::vector<Piece> pieces;
    std::vector<std::size_t> pieces_left;  // by bucket
    std::vector<std::size_t> finished;     // not yet taken
    std::exception_ptr failure;
    bool starting = false;  // a thread is in start_pieces
    bool stopping = false;  // the destructor waits for that thread

    Shared(Group pieces_group, std::size_t window) : group(std::move(pieces_group)), queue(window) {}
  };

  static void start_pieces(const std::shared_ptr<Shared>& shared);
  static void end_piece(const std::shared_ptr<Shared>& shared, std::size_t piece, std::exception_ptr failure);

  const std::size_t piece_bytes_;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace shoal::ddp
