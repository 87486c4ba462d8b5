// Identifies the start of a process group at a c10d store that has served earlier starts.
//
// A c10d store outlives a start: torchrun's agent keeps one store for all restarts of its workers, and a script may call
// init_process_group again on the same store. The keys of an earlier start are still there, with addresses of processes that
// have ended. So every start has its own number, and all its keys have that number as a prefix.
//
// How the ranks agree on the number, by operations that every c10d store has (add is atomic):
//   rank 0      takes the next number n from the counter `rounds`, writes its own entry `n/rank/0`, and answers to the newest
//               attempt of every other rank: `welcome/R/A` = n.
//   rank R      takes the next number A of its attempts from the counter `joins/R`, and writes its entry to the newest round
//               that it sees, if that one is open. It waits for `welcome/R/A`, and writes its entry `n/rank/R` = A.
//   rank 0      waits for the entries of round n, answers to attempts that it had not seen, and writes `n/started`: all A.
//   rank R      joins when its own A is in that list.
// Rank 0 changes `rounds` before it reads `joins/R`, and rank R changes `joins/R` before it reads `rounds`, so at least one
// of the two sees the other's change. An answer to an earlier attempt cannot be mistaken for an answer to this attempt. A
// process that dies at any point leaves an attempt that no process continues, and shifts no number of other ranks. Nothing
// depends on how many ranks an earlier start had. A rank that starts again before rank 0 does waits for rank 0's next round.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <shoal/status.h>

namespace shoal::torch {

struct StartRound {
  c10::intrusive_ptr<c10d::Store> store;  ///< the part of the store that belongs to this start
  std::int64_t number = 0;                ///< the same on all ranks; 0 for a group of one
};

/// Key in StartRound::store: the reason why a rank has ended the round.
inline constexpr const char* kRoundFailed = "failed";

/// How long a wait at the store lasts before the rank checks for failures of other ranks.
inline constexpr std::chrono::milliseconds kStoreSlice{250};

/// A wait for a key, in parts. It polls the store, with pauses that grow to 50 ms: a c10d::TCPStore writes two lines to
/// standard error for each wait() of its own that ends without the key.
class StoreWait {
 public:
  explicit StoreWait(c10d::Store& store) : store_(store) {}
  /// Whether `key` exists; returns at the latest after `time`. Throws the exceptions of the store, and an Interruption
  /// (interpreter.h) if a signal handler raises an exception meanwhile.
  bool arrives(const std::string& key, std::chrono::milliseconds time);

 private:
  c10d::Store& store_;
  std::chrono::microseconds pause_{500};
};

/// The error that a rank wrote to `key` when it ended a round; ok if `key` does not exist.
Status failure_at(c10d::Store& store, const std::string& key);

/// Joins the start of a group of `size` ranks as `rank`, and returns when every rank has joined. While it waits it writes a
/// line to standard error after SHOAL_WARN_AFTER that names the missing ranks.
/// Errors: timeout, naming the missing ranks; mismatch, if ranks have different sizes or two processes have the same rank,
/// naming both processes (host, process number); system_error, if the store fails. Throws the exception that a signal handler
/// raises.
Result<StartRound> join_start_round(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                    std::chrono::milliseconds timeout);

}  // namespace shoal::torch
