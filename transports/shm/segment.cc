#include "transports/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <utility>

namespace shoal::shm {

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(layout_, other.layout_);
  std::swap(memory_, other.memory_);
  return *this;
}

Segment::~Segment() {
  if (memory_ != nullptr) ::munmap(memory_, layout_.segment_bytes());
}

Status Segment::map(const Descriptor& file) {
  const std::size_t bytes = layout_.segment_bytes();
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file.get(), 0);
  if (memory == MAP_FAILED) return system_error("shm: mapping " + std::to_string(bytes) + " bytes of shared memory", errno);
  memory_ = static_cast<std::byte*>(memory);
  // Fewer TLB misses where the machine allows large pages in shared memory; refused elsewhere, which costs nothing. Not for
  // the common memory, of which only a small part is ever touched.
  ::madvise(memory, layout_.common_offset(), MADV_HUGEPAGE);
  return {};
}

Result<Segment> Segment::create(const SegmentLayout& layout, std::uint64_t job_id, Descriptor* file) {
  Segment segment;
  segment.layout_ = layout;
  const std::size_t bytes = layout.segment_bytes();
  *file = Descriptor(::memfd_create("shoal", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file->valid()) return system_error("shm: memfd_create", errno);
  if (::ftruncate(file->get(), static_cast<off_t>(bytes)) != 0) {
    return system_error("shm: making shared memory of " + std::to_string(bytes) + " bytes", errno);
  }
  // A file that shrinks under a mapping kills its readers by SIGBUS.
  if (::fcntl(file->get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return system_error("shm: sealing the shared memory", errno);
  }
  if (Status status = segment.map(*file); !status.ok()) return status;
  SegmentHeader& header = segment.header();
  header.magic = kSegmentMagic;
  header.version = kProtocolVersion;
  header.ranks = static_cast<std::uint32_t>(layout.ranks);
  header.job_id = job_id;
  header.tile_bytes = layout.ring.tile_bytes;
  header.slots = layout.ring.slots;
  header.window_bytes = layout.window_bytes;
  header.segment_bytes = bytes;
  return segment;
}

Result<Segment> Segment::attach(const SegmentLayout& layout, std::uint64_t job_id, const Descriptor& file) {
  Segment segment;
  segment.layout_ = layout;
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return system_error("shm: fstat of the received shared memory", errno);
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  if (static_cast<std::size_t>(info.st_size) != layout.segment_bytes() || seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Status(StatusCode::mismatch, "shm: the received shared memory has " + std::to_string(info.st_size) +
                                            " bytes, sealed " + (seals >= 0 && (seals & F_SEAL_SHRINK) != 0 ? "yes" : "no") +
                                            "; expected " + std::to_string(layout.segment_bytes()) + " sealed bytes");
  }
  if (Status status = segment.map(file); !status.ok()) return status;
  const SegmentHeader& header = segment.header();
  if (header.magic != kSegmentMagic || header.version != kProtocolVersion || header.ranks != layout.ranks ||
      header.job_id != job_id || header.tile_bytes != layout.ring.tile_bytes || header.slots != layout.ring.slots ||
      header.window_bytes != layout.window_bytes || header.segment_bytes != layout.segment_bytes()) {
    return Status(StatusCode::mismatch, "shm: the received shared memory was laid out by another version or for another job");
  }
  return segment;
}

}  // namespace shoal::shm
