// Averages of gradients in flight.
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

/// Averages buckets over all ranks, piece by piece; the end of every piece starts the next one.
///
/// The first part of each bucket is sent as soon as the window has room. The second parts are sent after release(), that of
/// the last bucket first. So one part of a gradient is averaged during backward, in backward's order, and the other during
/// the next forward, in the order in which forward needs it. (Priority by layer, applied by each rank for itself, was slower:
/// ranks with different progress block each other's window.) The size of the first part follows from what rank 0 measured on
/// the wire in the last steps (backward_fraction.h). Rank 0 sends it as a number before the first bucket; it is used from the
/// next step on. For buckets outside host memory, whose completion the host does not wait for, it stays kFirstShare.
///
/// The first failure is permanent: no further piece starts, and take_finished() throws the failure.
///
/// Sources of the idea: Jayarajan et al., "Priority-based parameter propagation for distributed DNN training" (P3), MLSys
/// 2019; Peng et al., "A generic communication scheduler for distributed DNN training acceleration" (ByteScheduler), SOSP
/// 2019.
/// Thread rule: one thread calls; the class synchronizes with the threads of the backend in which pieces end.
class Averages {
 public:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

  /// Consecutive elements of a bucket.
  struct Part {
    std::size_t bucket;
    std::int64_t begin;
    std::int64_t elements;
    bool operator==(const Part&) const = default;
  };

  /// Buckets are multiplied by `scale`, then summed over all ranks, as torch's reducer does with the reciprocal of the number
  /// of ranks. At most `window` pieces are in flight. A piece has at most `piece_bytes` bytes, or a quarter of its bucket if
  /// that is more, up to `longest_piece_bytes`.
  Averages(Group group, double scale, std::size_t window, std::size_t piece_bytes, std::size_t longest_piece_bytes);
  /// Does not wait for pieces in flight, which own their memory; starts no further piece.
  ~Averages();
  Averages(const Averages&) = delete;
  Averages& operator=(const Averages&) = delete;

  /// Averages `bucket`, a vector, in place. Collective: all ranks add the same buckets and release in the same order. Returns
  /// the bucket's number: 0, 1, ... Throws the failure.
  std::size_t add(const at::Tensor& bucket);
  /// Allows the second parts to start.
  void release();
  /// The parts that finished since the last call. With `wait` it blocks until there is one; allowed only while some part is
  /// unfinished. On a device, work that the current stream does from then on sees the results. Throws the failure.
  std::vector<Part> take_finished(bool wait);
  /// The next bucket is number 0 again. Call it only when all parts have been taken, or after a failure.
  void restart();
  /// The fraction of each bucket that is averaged during backward; the same on every rank.
  [[nodiscard]] double backward_fraction() const;

 private:
  struct Piece {
    Part part;
    at::Tensor values;
  };
  /// State shared between threads; callbacks of pieces in flight keep it alive.
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    Group group;
    PieceQueue queue;
    WireWatch watch;
    double backward_fraction = kFirstShare;  // of this step
    double agreed_share = kFirstShare;       // of the next one
    at::Tensor word;                         // rank 0's wished fraction in flight, or undefined
    std::size_t buckets = 0;
    std::vector<Piece> pieces;
    std::vector<Part> finished;                                      // not yet taken
    std::vector<c10::intrusive_ptr<c10::ivalue::Future>> on_device;  // sums of those parts that lie on a device
    std::exception_ptr failure;
    bool starting = false;  // a thread is in start_pieces
    bool stopping = false;  // the destructor waits for that thread

    void add_word(double wished_share);
    Shared(Group pieces_group, std::size_t window) : group(std::move(pieces_group)), queue(window) {}
  };

  static void start_pieces(const std::shared_ptr<Shared>& shared);
  /// `sum`: null if the call itself failed.
  static void end_piece(const std::shared_ptr<Shared>& shared, std::size_t piece,
                        const c10::intrusive_ptr<c10::ivalue::Future>& sum, std::exception_ptr failure);

  const double scale_;
  const std::size_t piece_bytes_;
  const std::size_t longest_piece_bytes_;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace shoal::ddp
