// Averages of gradients under way.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "torch_plugin/ddp/backward_fraction.h"
#include "torch_plugin/ddp/piece_queue.h"

namespace shoal::ddp {

/// Averages buckets over all ranks, piece by piece; every end of a piece starts the next one.
///
/// Of each bucket the first part goes as soon as there is room, and the second when release() is called, that of the last
/// bucket first. So a part of a gradient travels beside backward, in backward's order, and the other beside the next forward,
/// in the order in which that needs it. (Priority by layer, which each rank would apply by itself, was slower: ranks that are
/// not equally far hold each other's window.) How large the first part is follows from what rank 0 saw of the wire in the last
/// steps (backward_fraction.h): it says so in a number that travels before the first bucket and counts from the next step on.
/// For buckets that are not in host memory, whose ends nobody waits for, it stays kFirstShare.
///
/// The first failure stays: nothing starts any more, and take_finished() throws it.
///
/// Sources of the idea: Jayarajan et al., "Priority-based parameter propagation for distributed DNN training" (P3), MLSys 2019;
/// Peng et al., "A generic communication scheduler for distributed DNN training acceleration" (ByteScheduler), SOSP 2019.
/// Thread rule: one thread calls; the backend's threads, in which pieces end, are its own matter.
class Averages {
 public:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

  /// Elements of a bucket that lie one after the other.
  struct Part {
    std::size_t bucket;
    std::int64_t begin;
    std::int64_t elements;
    bool operator==(const Part&) const = default;
  };

  /// Buckets are multiplied by `scale`, then summed over all ranks, as torch's reducer does with the reciprocal of their
  /// number. At most `window` pieces are in flight, of at most `piece_bytes` bytes, or of a quarter of their bucket where that
  /// is more, up to `longest_piece_bytes`.
  Averages(Group group, double scale, std::size_t window, std::size_t piece_bytes, std::size_t longest_piece_bytes);
  /// Does not wait for what is in flight, which holds its own memory; starts nothing any more.
  ~Averages();
  Averages(const Averages&) = delete;
  Averages& operator=(const Averages&) = delete;

  /// Averages `bucket`, a vector, in place. Collective: the same buckets and releases in the same order. Returns the bucket's
  /// number: 0, 1, ... Throws the failure.
  std::size_t add(const at::Tensor& bucket);
  /// Lets the second parts go.
  void release();
  /// What has been finished since the last call. With `wait` it blocks until there is something: only while some of it is not
  /// finished. On a device it is there for what the current stream does from then on. Throws the failure.
  std::vector<Part> take_finished(bool wait);
  /// The next bucket is number 0 again. Only when all have been taken, or after a failure.
  void restart();
  /// Of each bucket, that goes beside backward; the same on every rank.
  [[nodiscard]] double backward_fraction() const;

 private:
  struct Piece {
    Part part;
    at::Tensor values;
  };
  /// What the threads share; callbacks of pieces in flight keep it alive.
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    Group group;
    PieceQueue queue;
    WireWatch watch;
    double backward_fraction = kFirstShare;  // of this step
    double agreed_share = kFirstShare;       // of the next one
    at::Tensor word;                         // rank 0's wish under way, or undefined
    std::size_t buckets = 0;
    std::vector<Piece> pieces;
    std::vector<Part> finished;                                      // not yet taken
    std::vector<c10::intrusive_ptr<c10::ivalue::Future>> on_device;  // of those among them that lie there
    std::exception_ptr failure;
    bool starting = false;  // a thread is in start_pieces
    bool stopping = false;  // the destructor waits for that thread

    void add_word(double wished_share);
    Shared(Group pieces_group, std::size_t window) : group(std::move(pieces_group)), queue(window) {}
  };

  static void start_pieces(const std::shared_ptr<Shared>& shared);
  /// `sum`: null where the call was not even made.
  static void end_piece(const std::shared_ptr<Shared>& shared, std::size_t piece,
                        const c10::intrusive_ptr<c10::ivalue::Future>& sum, std::exception_ptr failure);

  const double scale_;
  const std::size_t piece_bytes_;
  const std::size_t longest_piece_bytes_;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace shoal::ddp
