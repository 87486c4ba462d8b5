#include "transports/tcp/receive_ring.h"

#include <string>
#include <utility>

#include "transports/common/checksum.h"
#include "transports/tcp/packing.h"

namespace shoal::tcp {

Result<ReceiveRing> ReceiveRing::make(std::size_t bytes, std::size_t max_payload_bytes, LinkRings* rings) {
  auto ring = MirrorRing::make(bytes, rings);
  if (!ring.ok()) return ring.status();
  ReceiveRing made;
  made.ring_ = std::move(*ring);
  made.max_payload_bytes_ = max_payload_bytes;
  made.unpacked_ = std::make_unique_for_overwrite<CacheLine[]>(made.unpacked_lines());
  return made;
}

bool ReceiveRing::is_sound() const noexcept {
  return crc32c({head() + kFrameHeaderBytes, front_->wire_bytes()}) == front_->payload_sum;
}

bool ReceiveRing::unpack_payload() noexcept {
  return unpack({head() + kFrameHeaderBytes, front_->packed_bytes}, {unpacked(), front_->tile.size_bytes});
}

std::string ReceiveRing::describe_bad_header() const {
  return describe_bad_frame(std::span<const std::byte, kFrameHeaderBytes>(head(), kFrameHeaderBytes), max_payload_bytes_);
}

void ReceiveRing::cut_short() noexcept {
  if (!front_whole_) front_.reset();
  tail_ = head_ + (front_whole_ ? frame_bytes(*front_) : 0);
}

std::size_t ReceiveRing::memory_bytes() const noexcept {
  return ring_.size() + (unpacked_ == nullptr ? 0 : unpacked_lines() * sizeof(CacheLine));
}

}  // namespace shoal::tcp
