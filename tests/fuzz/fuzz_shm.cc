// What a process of the host may send during the handshake of shared memory: messages, and a file as the segment. The first
// byte selects one. A segment has the right size and seals, so that its header is checked.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "src/base/descriptor.h"
#include "transports/shm/message.h"
#include "transports/shm/segment.h"

using namespace shoal;  // NOLINT(google-build-using-namespace): the whole file is one function

namespace {

void send_as_message(const std::uint8_t* data, std::size_t size) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) std::abort();
  const Descriptor theirs(ends[0]);
  const Descriptor ours(ends[1]);
  if (size > 0 && ::send(theirs.get(), data, size, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;  // larger than the socket allows
  const shm::Received received = shm::receive_message(ours.get());
  if (size == 0 && received.outcome != shm::ReceiveOutcome::nothing) std::abort();
  if (received.outcome != shm::ReceiveOutcome::message) return;
  if (size != sizeof(shm::Message) || received.message.magic != shm::kSegmentMagic) std::abort();
  if (shm::refusal_status(received.message).ok()) std::abort();
}

void give_as_segment(const std::uint8_t* data, std::size_t size) {
  shm::SegmentLayout layout;
  layout.ranks = 2;
  layout.ring.tile_bytes = 4096;
  layout.ring.slots = 2;
  layout.window_bytes = 4096;
  constexpr std::uint64_t kJob = 7;
  const Descriptor file(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.get() < 0 || ::ftruncate(file.get(), static_cast<off_t>(layout.segment_bytes())) != 0) std::abort();
  const std::size_t bytes = std::min(size, sizeof(shm::SegmentHeader));
  if (::pwrite(file.get(), data, bytes, 0) != static_cast<ssize_t>(bytes)) std::abort();
  ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  const auto segment = shm::Segment::attach(layout, kJob, file);
  if (!segment.ok()) return;
  // An accepted header equals what this rank computed itself; nothing else is read from it.
  const shm::SegmentHeader& header = segment->header();
  if (header.job_id != kJob || header.ranks != 2 || header.segment_bytes != layout.segment_bytes()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  (data[0] % 2 == 0 ? send_as_message : give_as_segment)(data + 1, size - 1);
  return 0;
}
