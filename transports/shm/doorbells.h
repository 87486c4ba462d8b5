// Doorbells: how a rank learns of tiles in rings that it does not poll.
//
// Each rank says whose rings it polls (Segment::polls()). A sender whose ring is not polled sets its bit in the receiver's
// Segment::rang() after each tile. So polling costs what a rank uses, and a tile on a ring in use costs no atomic addition.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "transports/shm/segment.h"

namespace shoal::shm {

constexpr std::uint64_t bit_of_rank(std::size_t rank) noexcept { return std::uint64_t{1} << (rank % 64); }

/// A sender's view of its receiver. Every tile passes through ring_unless_polled(), so that all it needs is at hand.
class Doorbell {
 public:
  Doorbell(const Segment& segment, std::size_t receiver, std::size_t sender) noexcept
      : receiver_(segment.block(receiver)),
        polls_(segment.polls(receiver).word_of(sender)),
        rang_(segment.rang(receiver).word_of(sender)),
        bit_(bit_of_rank(sender)) {}

  /// After the sender has published a tile by a seq_cst store.
  void ring_unless_polled() noexcept {
    // Either this load sees that the receiver does not poll, or the receiver's check after stop_polling() sees the tile.
    if ((polls_.load(std::memory_order_seq_cst) & bit_) == 0) [[unlikely]]
      ring();
  }

 private:
  [[gnu::noinline]] void ring() noexcept {
    rang_.fetch_or(bit_, std::memory_order_seq_cst);
    // After the bit, and before the sender checks whether the receiver sleeps.
    receiver_.rung.store(1, std::memory_order_seq_cst);
  }

  RankBlock& receiver_;
  std::atomic<std::uint64_t>& polls_;
  std::atomic<std::uint64_t>& rang_;
  std::uint64_t bit_;
};

/// For the rank to which `polls` belongs, which alone writes it. Rings that were rung before still have their bits in `rang`.
inline void start_polling(RankBits polls, std::size_t sender) noexcept {
  auto& word = polls.word_of(sender);
  word.store(word.load(std::memory_order_relaxed) | bit_of_rank(sender), std::memory_order_relaxed);
}
/// Afterwards the caller checks the ring once more, by a seq_cst load.
inline void stop_polling(RankBits polls, std::size_t sender) noexcept {
  auto& word = polls.word_of(sender);
  word.store(word.load(std::memory_order_relaxed) & ~bit_of_rank(sender), std::memory_order_seq_cst);
}

/// Calls `visit(position)` for each of the `ranks` that have rung since the last call. `own`, `rang`: of this rank.
template <typename Visit>
void answer_doorbells(RankBlock& own, RankBits rang, std::size_t ranks, Visit visit) {
  // seq_cst: a sender that sets its bit after the loop below has read that word sets `rung` after this exchange.
  own.rung.exchange(0, std::memory_order_seq_cst);
  for (std::size_t first = 0; first < ranks; first += 64) {
    auto& word = rang.word_of(first);
    if (word.load(std::memory_order_seq_cst) == 0) continue;
    for (std::uint64_t bits = word.exchange(0, std::memory_order_seq_cst); bits != 0; bits &= bits - 1)
      visit(first + static_cast<std::size_t>(std::countr_zero(bits)));
  }
}

}  // namespace shoal::shm
