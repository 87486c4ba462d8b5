// Verifier: proves that a PipelineSchedule computes every microbatch once, in order, without deadlock and within its memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <shoal/status.h>

#include "src/pipeline/action.h"

namespace shoal::pipeline {

/// The ways in which a PipelineSchedule can be wrong.
enum class FaultKind : std::uint8_t {
  malformed,        ///< an action is invalid by itself: a number out of range, a stage of another rank
  missing,          ///< a stage lacks an action of a microbatch
  twice,            ///< a stage has an action of a microbatch more than once
  order,            ///< a rank computes before it can, sends before it has computed, or receives afterwards
  unmatched,        ///< the k-th message that a stage sends is not the k-th that its neighbour receives
  deadlock,         ///< ranks wait for each other forever
  memory,           ///< a rank holds more microbatches than its bound
  replicas_differ,  ///< two data-parallel replicas have different actions, so their reductions hang
};
std::string_view to_string(FaultKind kind) noexcept;

/// One fault and its place; -1 for each part of the place that does not apply.
struct Fault {
  FaultKind kind = FaultKind::malformed;
  int rank = -1;
  int action = -1;  ///< position in the rank's actions
  int stage = -1;
  int microbatch = -1;
  std::string message;  ///< contains all of the above
};

/// What a send does until its message has been received.
enum class SendRule : std::uint8_t {
  returns_at_once,  ///< as shoal's send_async: later actions go on
  waits,            ///< a rendezvous: the rank waits until the receiver is at the matching receive
};

struct VerifyOptions {
  /// The most microbatches that each rank may hold, those of all its stages together; empty = any number.
  std::vector<int> held_bound;
  SendRule sends = SendRule::returns_at_once;
  /// Messages from one rank to another have no tags but come in order, whatever their stage and direction: a communicator for
  /// each ordered pair of ranks on a device stream.
  bool pairs_in_order = false;
};

/// Checks `schedule` and returns its faults, at most twenty; none = proven.
///
/// Proven: each stage has a forward and a backward (with zb_h1 both halves of it, with forward_only none) of each microbatch
/// once, in a possible order; every message that crosses ranks is received before its use and sent after it was computed; the
/// k-th message over a cut in one direction is the k-th that is received; all actions end; no rank holds more microbatches than
/// its bound; reductions come after the last backward of their stage, in all stages or in none.
///
/// Method: abstract execution. An action that can run stays able to run until it does, so one execution stands for all. Pure.
std::vector<Fault> verify(const PipelineSchedule& schedule, const VerifyOptions& options = {});

/// The faults of all replicas; those that differ from the first are `replicas_differ` at the first different action.
std::vector<Fault> verify_replicas(std::span<const PipelineSchedule> replicas, const VerifyOptions& options = {});

/// ok for no faults; else internal, with the first fault's message and the number of further faults.
Status to_status(const std::vector<Fault>& faults);

}  // namespace shoal::pipeline
