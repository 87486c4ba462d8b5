#include "transports/shm/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "transports/shm/ring.h"

namespace shoal::shm {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kLargePageBytes = std::size_t{2} << 20;
// Costs address space only, of which there are 2^47 bytes. A peer maps as much of an arena as is used.
#ifdef SHOAL_TSAN  // its processes have little address space
constexpr std::size_t kMaxArenaBytes = std::size_t{4} << 30;
#else
constexpr std::size_t kMaxArenaBytes = std::size_t{256} << 30;
#endif

std::size_t physical_bytes() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? static_cast<std::size_t>(pages) * static_cast<std::size_t>(page) : std::size_t{1} << 30;
}

}  // namespace

Arena* Arena::make() {
  auto* arena = new Arena();  // never deleted: pieces may outlive every other static object
  arena->owner_ = ::getpid();
  const std::size_t bytes = round_up(std::min(physical_bytes(), kMaxArenaBytes), kLargePageBytes);
  arena->file_ = Descriptor(::memfd_create("shoal-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!arena->file_.valid() || ::ftruncate(arena->file_.get(), static_cast<off_t>(bytes)) != 0 ||
      // A file that shrinks under a mapping kills its readers by SIGBUS.
      ::fcntl(arena->file_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return arena;
  }
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, arena->file_.get(), 0);
  if (memory == MAP_FAILED) return arena;
  // Fewer TLB misses where the machine allows large pages in shared memory; refused elsewhere, which costs nothing.
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  arena->base_ = static_cast<std::byte*>(memory);
  arena->size_bytes_ = bytes;
  arena->free_.emplace(0, bytes);
  return arena;
}

Arena* Arena::instance() {
  static std::mutex mutex;
  static Arena* arena = nullptr;
  const std::scoped_lock lock(mutex);
  // A forked child does not know which pieces its parent has handed out, so it starts with an arena of its own.
  if (arena == nullptr || arena->owner_ != ::getpid()) arena = make();
  return arena->base_ == nullptr ? nullptr : arena;
}

Result<void*> Arena::allocate(std::size_t bytes) {
  if (bytes == 0) return Status(StatusCode::invalid_argument, "shared memory: 0 bytes were requested");
  const std::size_t alignment = bytes >= kLargePageBytes ? kLargePageBytes : kPageBytes;
  const std::scoped_lock lock(mutex_);
  if (bytes <= size_bytes_) {
    const std::size_t wanted = round_up(bytes, kPageBytes);
    for (auto piece = free_.begin(); piece != free_.end(); ++piece) {
      const auto [start, size] = *piece;
      const std::size_t offset = round_up(start, alignment);
      if (offset - start > size || size - (offset - start) < wanted) continue;
      free_.erase(piece);
      if (offset > start) free_.emplace(start, offset - start);
      if (offset + wanted < start + size) free_.emplace(offset + wanted, start + size - offset - wanted);
      in_use_.emplace(offset, wanted);
      return static_cast<void*>(base_ + offset);
    }
  }
  return Status(StatusCode::system_error, "shared memory: no room for " + std::to_string(bytes) + " bytes in an arena of " +
                                              std::to_string(size_bytes_) + " bytes, in which " +
                                              std::to_string(in_use_.size()) + " pieces are in use");
}

Status Arena::free(void* memory) {
  const std::scoped_lock lock(mutex_);
  const auto offset = offset_of(memory, 0);
  const auto piece = offset ? in_use_.find(*offset) : in_use_.end();
  if (piece == in_use_.end()) {
    return {StatusCode::invalid_argument,
            "shared memory: the address to free was not allocated here, or has been freed already"};
  }
  auto [start, size] = *piece;
  in_use_.erase(piece);
  frees_.fetch_add(1, std::memory_order_release);
  ::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(start), static_cast<off_t>(size));
  auto next = free_.lower_bound(start);
  if (next != free_.end() && start + size == next->first) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == start) {
      previous->second += size;
      return {};
    }
  }
  free_.emplace(start, size);
  return {};
}

ArenaFile Arena::file() const noexcept {
  struct stat info {};
  if (::fstat(file_.get(), &info) != 0) return {};
  return {info.st_dev, info.st_ino, size_bytes_, owner_, file_.get()};
}

}  // namespace shoal::shm
