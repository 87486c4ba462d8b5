// Limits on the size of a job. All parts of shoal use these numbers; an error names the limit that a job exceeds.
#pragma once

namespace shoal {

/// Ranks of one host: the limit of the shared-memory transport and of `shoal run`.
inline constexpr int kMaxHostRanks = 4096;
/// Ranks of one job, on any number of hosts: the limit of rank 0's store. One thread of rank 0 serves all ranks at start-up,
/// with a descriptor for each.
inline constexpr int kMaxJobRanks = 65536;
static_assert(kMaxHostRanks <= kMaxJobRanks);

/// Ranks for which `shoal explain`, `verify` and `print` build schedules: a limit of these tools, whose memory and time grow
/// with it, and not of jobs.
inline constexpr int kMaxScheduleRanks = 4096;

// Other limits:
// - Size of a message and of a collective's buffer: the address space of a process; byte counts have 64 bits.
// - Communicators and groups that exist at a time: limited by memory only.
// - Descriptors of a rank: three for each rank of its host, a connection for each other rank of the job, and
//   SHOAL_SOCKETS_PER_PEER more for each rank of other hosts. At start-up a process raises its soft limit to the hard limit
//   (`ulimit -Hn`).
// - A value in a Store: 1 MiB; its key: 4 KiB.
// - `shoal simulate` and the tables of `shoal tune` take jobs of kMaxJobRanks.

}  // namespace shoal
