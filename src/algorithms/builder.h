// ProgramBuilder: writes down one rank's steps and remembers where the rank's current value of every chunk is.
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

/// Appends steps to the Program of one rank. A stage says only *what* moves; the builder knows whether this rank's value of a
/// chunk still is its untouched input or, once something was written, in the output or, where the output has no place for it,
/// in scratch. That is what lets stages be composed: no stage needs to know which one ran before it, and a reduce-scatter is
/// the same whether all ranks or one keep the result.
class ProgramBuilder {
 public:
  ProgramBuilder(const Topology& topology, const Collective& collective, int rank, std::uint32_t message_chunks,
                 std::uint32_t lanes);

  [[nodiscard]] int rank() const noexcept { return program_.rank; }
  /// Whether chunks of several ranks may travel as one message: unless they may have to lie in scratch and differ in size.
  [[nodiscard]] bool joins_shares() const noexcept { return joins_shares_; }
  /// They may not from now on: a stage that folds them one by one leaves the own one in the output and the others in scratch.
  void keep_shares_apart() noexcept { joins_shares_ = false; }
  /// See Program::folds_across_links. The same on all ranks.
  void fold_across_links() noexcept { program_.folds_across_links = true; }

  void send(int peer, const Shard& shard);         ///< this rank's value goes to `peer`
  void recv(int peer, const Shard& shard);         ///< this rank's value becomes that of `peer`
  void recv_reduce(int peer, const Shard& shard);  ///< the value of `peer` is folded into this rank's
  /// Puts this rank's value where results go: into the output, or into scratch where the output has no place for it.
  void copy_to_output(const Shard& shard);
  /// This rank makes no more use of its value of `shard` until it receives it anew: its scratch may serve others.
  void forget(const Shard& shard);

  /// The finished Program, called `algorithm`.
  [[nodiscard]] Program finish(std::string algorithm) &&;

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  enum class Place : std::uint8_t { nowhere, input, output, scratch };
  /// Before step `before`, the value of `shard` was given up.
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
      last_folds_;  // where it reduces, by message chunk: the step that folded into its value last, or kNone
  std::vector<Forgotten> forgotten_;
};

}  // namespace shoal
