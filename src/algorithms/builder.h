// ProgramBuilder: records the steps of one rank and tracks where the rank's current value of every chunk is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/schedule/layout.h"
#include "src/schedule/program.h"

namespace shoal {

/// Message chunks [first, first + count), moved and reduced by the steps of one lane.
struct Shard {
  std::uint32_t lane = 0;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

/// Appends steps to the Program of one rank. A stage states only *what* moves. The builder tracks whether this rank's value
/// of a chunk is still its unchanged input, or has been written to the output or, if the output has no place for it, to
/// scratch. Therefore stages can be composed: a stage does not depend on the stage before it, and a reduce-scatter is the
/// same whether all ranks or one rank keeps the result.
class ProgramBuilder {
 public:
  ProgramBuilder(int ranks, const Collective& collective, int rank, std::uint32_t message_chunks, std::uint32_t lanes);

  [[nodiscard]] int rank() const noexcept { return program_.rank; }
  /// Whether chunks of several ranks may travel as one message: not if they may lie in scratch and differ in size.
  [[nodiscard]] bool joins_shares() const noexcept { return joins_shares_; }
  /// From now on chunks of several ranks travel as separate messages. For a stage that folds them one by one: it leaves its
  /// own chunk in the output and the other chunks in scratch.
  void keep_shares_apart() noexcept { joins_shares_ = false; }
  /// See Program::folds_across_links. All ranks must make the same choice.
  void fold_across_links() noexcept { program_.folds_across_links = true; }

  void send(int peer, const Shard& shard);         ///< this rank's value goes to `peer`
  void recv(int peer, const Shard& shard);         ///< this rank's value becomes that of `peer`
  void recv_reduce(int peer, const Shard& shard);  ///< the value of `peer` is folded into this rank's
  /// Moves this rank's value to where results go: the output, or scratch if the output has no place for it.
  void copy_to_output(const Shard& shard);
  /// This rank does not use its value of `shard` until it receives it again, so the scratch of `shard` may be reused.
  void forget(const Shard& shard);

  /// The finished Program, called `algorithm`.
  [[nodiscard]] Program finish(std::string algorithm) &&;

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  enum class Place : std::uint8_t { nowhere, input, output, scratch };
  /// The value of `shard` was forgotten before step `before`.
  struct Forgotten {
    std::size_t before = 0;
    Shard shard;
  };

  [[nodiscard]] bool fits_output(const Shard& shard) const noexcept;
  [[nodiscard]] Slice slice(Place place, const Shard& shard) const;
  [[nodiscard]] Slice value(const Shard& shard) const;
  Slice write(const Shard& shard);
  void mark_completions();
  void place_scratch();

  Program program_;
  bool reduces_;
  bool joins_shares_;
  bool uses_scratch_ = false;
  ChunkRun input_;
  ChunkRun output_;
  std::vector<Place> place_;  // by message chunk
  std::vector<std::uint32_t>
      last_folds_;  // by message chunk, where it reduces: the step that last folded into its value, or kNone
  std::vector<Forgotten> forgotten_;
};

}  // namespace shoal
