// How large a job may be. All parts of shoal go by these numbers; an error names the one that a job is beyond.
#pragma once

namespace shoal {

/// Ranks of one host: what shared memory connects, and what `shoal run` starts.
inline constexpr int kMaxHostRanks = 1024;
/// Ranks of one job, on any number of hosts: what rank 0's store serves at start-up. One thread of rank 0 serves them, with a
/// descriptor for each.
inline constexpr int kMaxJobRanks = 16384;

// Other limits:
// - A message, and the buffer of a collective: what a process can address; its bytes are counted in 64 bits.
// - Communicators and groups that exist at a time: memory only.
// - Descriptors of a rank: three for each rank of its host, a connection for each other rank of the job, and as many more for
//   each rank of other hosts as SHOAL_SOCKETS_PER_PEER says. At start-up a process raises its soft limit to the hard one
//   (`ulimit -Hn`).
// - A value in a Store: 1 MiB; its key: 4 KiB.
// - `shoal explain`, `verify` and the tables of `shoal tune` work on schedules of up to 4,096 ranks, and `shoal simulate` on
//   65,536: those are limits of the tools, whose memory and time grow with the ranks, and not of jobs.

}  // namespace shoal
