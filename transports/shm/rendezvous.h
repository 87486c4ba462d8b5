// How the ranks of a group find each other through a Unix socket, and come to share memory.
//
//   rank r > lowest                          lowest rank
//   ---------------------------------------------------------------------------
//   hello (rank, settings; pidfd)         ->
//                                         <- roster (joined ranks), whenever it changes
//                                         <- welcome (memfd)                     when all have joined
//                                         <- member  (pidfd)                     for each rank in another namespace
//   ready                                 ->   its RankCard is in the memory
//                                         <- go                                  when all are ready
//
// Either side may send `refusal` with a reason instead; then the connection of the whole group fails with that reason.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <shoal/status.h>

#include "src/base/descriptor.h"
#include "transports/common/connect_deadline.h"
#include "transports/shm/process_memory.h"
#include "transports/shm/segment.h"

namespace shoal::shm {

/// What every rank holds when the group is complete.
struct Group {
  Segment segment;
  /// Pidfds by position in the sorted list of ranks, of those that this rank cannot open itself; else invalid.
  std::vector<Descriptor> lives;
};

/// The settings that must be the same on all ranks.
struct GroupSettings {
  std::uint64_t job_id = 0;
  RingShape ring;
  std::size_t window_bytes = 0;
};

/// A listening socket with a name that the kernel chose, and a secret that only ranks of the job learn.
class Listener {
 public:
  static Result<Listener> create(int rank, std::uint64_t job_id);

  /// The contents of Transport::address(): name, secret, rank and job.
  [[nodiscard]] std::string address() const;

 private:
  friend Result<Group> lead_group(Listener& listener, const GroupSettings& settings, const std::vector<int>& ranks,
                                  const RankCard& card, ConnectDeadline time_limit);
  Descriptor socket_;
  std::vector<Descriptor> refused_;  ///< connections that got a refusal: closed with this object, not before
  std::array<std::byte, 16> secret_{};
  std::string name_;
  std::int32_t rank_ = 0;
  std::uint64_t job_id_ = 0;
};

/// The contents of Listener::address() of rank `leader` of this job.
struct LeaderAddress {
  std::string_view name;  ///< of the socket; a part of the bytes
  std::array<std::byte, 16> secret{};
};
/// Safe for any bytes. Errors: invalid_argument for bytes that are no address of this version; mismatch for another rank or
/// job.
Result<LeaderAddress> parse_address(std::string_view bytes, int leader, std::uint64_t job_id);

/// Run by the lowest rank of `ranks` (sorted, all of the group): waits for the other ranks, creates the memory and passes it
/// out. `card`: of this rank; when the group is complete, the segment has the cards of all ranks. Unauthenticated connections
/// are dropped. Errors: timeout, naming the missing ranks; mismatch, naming the rank with other settings; peer_failed;
/// system_error.
Result<Group> lead_group(Listener& listener, const GroupSettings& settings, const std::vector<int>& ranks, const RankCard& card,
                         ConnectDeadline time_limit);

/// Run by every other rank, with the address of the lowest one. Errors: as lead_group(); invalid_argument for bytes that are no
/// address of the lowest rank.
Result<Group> join_group(const std::string& leader_address, int rank, const GroupSettings& settings,
                         const std::vector<int>& ranks, const RankCard& card, ConnectDeadline time_limit);

}  // namespace shoal::shm
