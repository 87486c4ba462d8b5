#include "transports/tcp/mirror_ring.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "src/base/descriptor.h"

namespace shoal::tcp {

Result<MirrorRing> MirrorRing::make(std::size_t bytes, LinkRings* rings) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t pages = (bytes + page - 1) / page;
  const std::size_t size = pages * page;
  const Descriptor file(::memfd_create("shoal-tcp", MFD_CLOEXEC));
  if (!file.valid()) return system_error("receive memory: memfd_create", errno);
  if (::ftruncate(file.get(), static_cast<off_t>(size)) != 0) return system_error("receive memory: ftruncate", errno);
  void* both = ::mmap(nullptr, 2 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (both == MAP_FAILED) return system_error("receive memory: mmap", errno);
  MirrorRing ring;
  ring.data_ = static_cast<std::byte*>(both);
  ring.size_ = size;
  for (std::byte* half : {ring.data_, ring.data_ + size}) {
    if (::mmap(half, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.get(), 0) == MAP_FAILED) {
      return system_error("receive memory: mmap", errno);
    }
  }
  if (rings != nullptr && rings->memory().has_limit()) {
    ring.rings_ = rings;
    ring.part_bytes_ = (pages + kParts - 1) / kParts * page;
    ring.has_uncounted_ = true;
  }
  return ring;
}

MirrorRing::~MirrorRing() {
  if (rings_ != nullptr) rings_->subtract(resident_bytes());
  if (data_ != nullptr) ::munmap(data_, 2 * size_);
}

void MirrorRing::swap(MirrorRing& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(has_uncounted_, other.has_uncounted_);
  std::swap(counted_from_, other.counted_from_);
  std::swap(counted_to_, other.counted_to_);
  std::swap(rings_, other.rings_);
  std::swap(part_bytes_, other.part_bytes_);
  std::swap(resident_, other.resident_);
}

void MirrorRing::count(std::uint64_t position, std::size_t bytes) noexcept {
  if (bytes == 0) return;
  const Parts parts = parts_of(position, bytes);
  rings_->add(bytes_of(parts & ~resident_));
  resident_ |= parts;
  has_uncounted_ = resident_bytes() != size_;
  const std::uint64_t last = position + bytes - 1;
  const std::size_t first_offset = position % size_;
  const std::size_t last_offset = last % size_;
  counted_from_ = position - first_offset % part_bytes_;
  counted_to_ = last - last_offset + std::min(size_, (last_offset / part_bytes_ + 1) * part_bytes_);
}

void MirrorRing::give_back(std::uint64_t from, std::uint64_t to) noexcept {
  if (resident_ == 0) return;
  const std::size_t data_bytes = size_ - (to - from);
  Parts unused = resident_ & ~(data_bytes == 0 ? Parts{0} : parts_of(to, data_bytes));
  if (unused == 0) return;
  counted_from_ = counted_to_ = 0;
  has_uncounted_ = true;
  while (unused != 0) {
    const int first = std::countr_zero(unused);
    const int length = std::countr_one(unused >> first);
    const Parts run = (~Parts{0} >> (static_cast<int>(kParts) - length)) << first;
    // Punches a hole into the file, and so hits both mappings.
    const std::size_t bytes = bytes_of(run);
    if (::madvise(data_ + static_cast<std::size_t>(first) * part_bytes_, bytes, MADV_REMOVE) != 0)
      return rings_->memory().on_refused();
    resident_ &= ~run;
    rings_->subtract(bytes);
    unused &= ~run;
  }
}

// Those that contain any of these bytes, of which there are 1 to size_.
MirrorRing::Parts MirrorRing::parts_of(std::uint64_t position, std::size_t bytes) const noexcept {
  const auto from_to = [](std::size_t first, std::size_t last) {
    return (~Parts{0} << first) & (~Parts{0} >> (kParts - 1 - last));
  };
  const std::size_t begin = position % size_;
  const std::size_t end = begin + bytes;
  const std::size_t first = begin / part_bytes_;
  if (end <= size_) return from_to(first, (end - 1) / part_bytes_);
  return from_to(first, (size_ - 1) / part_bytes_) | from_to(0, (end - size_ - 1) / part_bytes_);
}

std::size_t MirrorRing::bytes_of(Parts parts) const noexcept {
  if (parts == 0) return 0;
  const std::size_t last = (size_ - 1) / part_bytes_;
  const std::size_t missing = (last + 1) * part_bytes_ - size_;  // the last part may be shorter
  return static_cast<std::size_t>(std::popcount(parts)) * part_bytes_ - ((parts >> last & 1) != 0 ? missing : 0);
}

}  // namespace shoal::tcp
