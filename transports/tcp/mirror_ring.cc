#include "transports/tcp/mirror_ring.h"

#include <sys/mman.h>

#include <cerrno>

#include "src/base/descriptor.h"

namespace shoal::tcp {

Result<MirrorRing> MirrorRing::make(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t size = (bytes + page - 1) / page * page;
  const Descriptor file(::memfd_create("shoal-tcp", MFD_CLOEXEC));
  if (!file.valid()) return system_error("receive memory: memfd_create", errno);
  if (::ftruncate(file.get(), static_cast<off_t>(size)) != 0) return system_error("receive memory: ftruncate", errno);
  void* both = ::mmap(nullptr, 2 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (both == MAP_FAILED) return system_error("receive memory: mmap", errno);
  MirrorRing ring(static_cast<std::byte*>(both), size);
  for (std::byte* half : {ring.data_, ring.data_ + size}) {
    if (::mmap(half, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.get(), 0) == MAP_FAILED) {
      return system_error("receive memory: mmap", errno);
    }
  }
  return ring;
}

MirrorRing::~MirrorRing() {
  if (data_ != nullptr) ::munmap(data_, 2 * size_);
}

}  // namespace shoal::tcp
