// ProgramBuilder: writes down one rank's steps and remembers where the rank's current value of every chunk is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/schedule/program.h"

namespace shoal {

/// Message chunks [first, first + count), moved and reduced by the steps of one lane.
struct Shard {
  std::uint32_t lane = 0;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

/// Appends steps to the Program of one rank. A stage says only *what* moves; the builder knows whether this rank's value of a
/// chunk still is its untouched input or, once something was written, in the output. That is what lets stages be composed: no
/// stage needs to know which one ran before it.
class ProgramBuilder {
 public:
  ProgramBuilder(const Topology& topology, const Collective& collective, int rank, std::uint32_t message_chunks,
                 std::uint32_t lanes);

  [[nodiscard]] int rank() const noexcept { return program_.rank; }

  void send(int peer, const Shard& shard);         ///< this rank's value goes to `peer`
  void recv(int peer, const Shard& shard);         ///< this rank's value becomes that of `peer`
  void recv_reduce(int peer, const Shard& shard);  ///< the value of `peer` is folded into this rank's
  void copy_to_output(const Shard& shard);         ///< puts this rank's untouched input where the result belongs

  /// The finished Program, called `algorithm`.
  [[nodiscard]] Program finish(std::string algorithm) &&;

 private:
  [[nodiscard]] Slice value(const Shard& shard) const;
  Slice write(const Shard& shard);

  Program program_;
  std::uint32_t first_input_chunk_ = 0;
  std::vector<bool> in_output_;  // by message chunk
};

}  // namespace shoal
