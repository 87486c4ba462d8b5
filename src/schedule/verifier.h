// Verifier: proves that a Schedule computes the requested collective, on every rank, without deadlock or race.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <shoal/status.h>

#include "src/schedule/program.h"

namespace shoal {

/// The ways in which a Schedule can be wrong.
enum class FaultKind : std::uint8_t {
  malformed,       ///< a step, a slice or a Program's header is invalid by itself
  input_written,   ///< a step writes the input, which belongs to the caller
  unmatched,       ///< a send without a receive, or a receive without a send
  size_mismatch,   ///< a send and its receive, or a source and its target, differ in chunks or bytes
  race,            ///< two steps of different lanes touch the same chunk and one of them writes it
  undefined_read,  ///< a step reads a chunk that nothing has written
  deadlock,        ///< ranks wait for each other forever
  wrong_result,    ///< a chunk of the output does not hold each expected contribution exactly once
};
std::string_view to_string(FaultKind kind) noexcept;

/// One fault and its place; -1 for each part of the place that does not apply.
struct Fault {
  FaultKind kind = FaultKind::malformed;
  int rank = -1;
  int step = -1;
  int peer = -1;
  int chunk = -1;
  std::string message;  ///< contains all of the above
};

/// Checks `schedule` and returns its faults, at most twenty; none = proven.
///
/// Proven, for buffers out of place and in place: every slice is in range; the k-th send of a link matches the k-th receive
/// with the same size; steps of different lanes never conflict; all steps end although a link holds a single tile, tiles of
/// one link travel in order, and an engine waits for all operands of an n-way reduction before it takes any; no step reads
/// undefined data; the output of every rank holds each expected contribution exactly once (barrier: at least once); and if
/// the operation is an average, it is divided exactly once, when it holds every contribution.
///
/// Method: abstract execution. Every chunk is two tiles, the value of a chunk is the set of (rank, chunk) contributions
/// folded into it. One execution represents all: a step that can run stays able to run until it does, so the order does not
/// matter. Pure; about a second for a ring of 256 ranks.
std::vector<Fault> verify(const Schedule& schedule);

/// ok for no faults; else internal, with the first fault's message and the number of further faults.
Status to_status(const std::vector<Fault>& faults);

}  // namespace shoal
