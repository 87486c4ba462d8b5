// Bells: how a rank wakes another one that blocks in poll or epoll.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <shoal/status.h>

#include "src/base/descriptor.h"

namespace shoal::shm {

/// What a rank has to know to ring the bell of another one. Ranks read it in the segment.
struct BellName {
  std::array<char, 28> socket{};   ///< abstract name of the socket; the first byte is 0
  std::uint32_t reserved = 0;      ///< fills a gap: the struct lies in shared memory
  std::array<std::byte, 8> key{};  ///< the only datagram that the socket takes
};

/// The bell of this rank: a datagram socket with a random name, which wakes this rank and is the sender's end for the bells of
/// all others. So a rank needs one descriptor, whatever the number of its peers.
///
/// Other users of the host can read the name in /proc/net/unix and send to it. A filter in the kernel drops every datagram but
/// the key, which only ranks of the group can read. Where the system has no such filters, a foreign datagram ends a wait early.
/// Thread rule: ring() any thread, drain() one at a time.
class Bell {
 public:
  /// Errors: system_error, also where descriptors have run out.
  static Result<Bell> create();

  [[nodiscard]] const BellName& name() const noexcept { return name_; }
  /// Readable after ring() of another rank, until drain().
  [[nodiscard]] int descriptor() const noexcept { return socket_.get(); }
  /// Makes the socket of `name` readable. Nothing happens where its rank has ended.
  void ring(const BellName& name) const noexcept;
  /// Takes one ring. So a descriptor that other processes keep readable costs a system call a wait, not a loop.
  void drain() const noexcept;

 private:
  BellName name_;
  Descriptor socket_;
};

}  // namespace shoal::shm
