// A trace of the stages of collectives, for time lines of programs.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace shoal {

/// The stage of a call that a piece of work belongs to, by the link that carries the data.
enum class Stage : std::uint8_t {
  node_reduce,  ///< data of other ranks of the host is reduced
  wire,         ///< between hosts: data is sent or received, and reduced where it is received
  node_gather,  ///< results of other ranks of the host are copied
};

/// A piece of work on one tile of a call.
struct StageEvent {
  std::chrono::steady_clock::time_point begin;
  std::chrono::steady_clock::time_point end;
  std::uint64_t call = 0;          ///< Work::sequence()
  std::size_t message_bytes = 0;   ///< of the whole call
  std::size_t bytes = 0;           ///< of this piece
  std::uint32_t communicator = 0;  ///< a number that identifies the communicator within the process
  std::int32_t thread = 0;         ///< the kernel's id of the thread that did the work
  Stage stage = Stage::wire;
};

/// Starts recording the collectives of all communicators of this process. Memory is bounded: at most 65,536 pieces of each
/// thread are kept, later ones are dropped. Small calls that need no link (one_shot on one host) are not recorded. A second
/// call changes nothing. Thread rule: any thread.
void trace_begin();

/// Ends the recording and returns the pieces since trace_begin(), grouped by thread and ordered by their ends. Pieces that end
/// during this call may be missing. Thread rule: any thread.
std::vector<StageEvent> trace_end();

}  // namespace shoal
