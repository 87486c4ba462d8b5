// What the parts of calls do, moment by moment, for time lines of programs.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace shoal {

/// The part of a call that a piece of work belongs to, by the wire that brings the data.
enum class Stage : std::uint8_t {
  node_reduce,  ///< what other ranks of the host give is folded
  wire,         ///< between hosts: sent, received, and folded where it is received
  node_gather,  ///< results of other ranks of the host are taken
};

/// A piece of work on one tile of a call.
struct StageEvent {
  std::chrono::steady_clock::time_point begin;
  std::chrono::steady_clock::time_point end;
  std::uint64_t call = 0;          ///< Work::sequence()
  std::size_t message_bytes = 0;   ///< of the whole call
  std::size_t bytes = 0;           ///< of this piece
  std::uint32_t communicator = 0;  ///< a number that tells communicators of a process apart
  std::int32_t thread = 0;         ///< the kernel's number of the thread that did it
  Stage stage = Stage::wire;
};

/// From now on the collectives of all communicators of this process are recorded, in memory that is bounded: at most 65,536
/// pieces of each thread, what follows is left out. Small calls that need no link (one_shot on one host) leave nothing.
/// A second call changes nothing. Thread rule: any thread.
void trace_begin();

/// Ends the recording and returns what each thread has done since trace_begin(), in the order in which it ended, one thread
/// after the other. Pieces that end at this very moment may be left out. Thread rule: any thread.
std::vector<StageEvent> trace_end();

}  // namespace shoal
