// Where a rank waits for the ranks below it in the tree of the rendezvous.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <shoal/status.h>

#include "src/base/descriptor.h"

namespace shoal::shm {

/// A listening socket with a name that the kernel chose, and a secret that only ranks of the job learn.
class Listener {
 public:
  static Result<Listener> create(int rank, std::uint64_t job_id);

  /// The contents of Transport::address(): name, secret, rank, job and namespaces.
  [[nodiscard]] std::string address() const;
  [[nodiscard]] int socket() const noexcept { return socket_.get(); }
  [[nodiscard]] const std::array<std::byte, 16>& secret() const noexcept { return secret_; }
  /// Closes `connections` with this object, not before: their peers are to read a refusal first.
  void keep(std::vector<Descriptor> connections) { refused_ = std::move(connections); }

 private:
  Descriptor socket_;
  std::vector<Descriptor> refused_;
  std::array<std::byte, 16> secret_{};
  std::string name_;
  std::int32_t rank_ = 0;
  std::uint64_t job_id_ = 0;
};

/// The contents of Listener::address().
struct ListenerAddress {
  std::string_view name;  ///< of the socket; a part of the bytes
  std::array<std::byte, 16> secret{};
  std::uint64_t space = 0;  ///< ProcessIdentity::space of the rank
};
/// Of rank `rank` of this job. Safe for any bytes. Errors: invalid_argument for bytes that are no address of this version;
/// mismatch for another rank or job.
Result<ListenerAddress> parse_address(std::string_view bytes, int rank, std::uint64_t job_id);

/// Connects to the listener of `rank`; waits while its queue of connections is full. Errors: timeout; peer_failed where nobody
/// listens; system_error.
Result<Descriptor> dial(const ListenerAddress& to, int rank, std::chrono::steady_clock::time_point deadline);
/// Whether the process at the other end of a Unix socket runs as the same user as this one.
bool same_user(int socket);

}  // namespace shoal::shm
