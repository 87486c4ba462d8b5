#include "transports/shm/arena_view.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>

namespace shoal::shm {
namespace {

constexpr std::size_t kFirstBytes = std::size_t{256} << 20;

bool is_same(const ArenaFile& file, const struct stat& info) noexcept {
  return info.st_dev == file.device && info.st_ino == file.inode && static_cast<std::uint64_t>(info.st_size) == file.size_bytes;
}

}  // namespace

Descriptor make_reserve() noexcept { return Descriptor(::open("/", O_PATH | O_CLOEXEC)); }

int open_arena(const ArenaFile& file, Descriptor& opened) noexcept {
  std::array<char, 48> path{};
  std::snprintf(path.data(), path.size(), "/proc/%d/fd/%d", file.pid, file.descriptor);
  struct stat info {};
  // Before it is opened: the number may mean any other file now, also a device.
  if (::stat(path.data(), &info) != 0) return errno == ENOENT ? ESRCH : errno;
  if (!is_same(file, info)) return ESRCH;
  Descriptor candidate(::open(path.data(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!candidate.valid()) return errno == ENOENT ? ESRCH : errno;
  if (::fstat(candidate.get(), &info) != 0) return errno;
  if (!is_same(file, info)) return ESRCH;
  // A file that shrinks under a mapping kills its readers by SIGBUS.
  const int seals = ::fcntl(candidate.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return EPERM;
  opened = std::move(candidate);
  return 0;
}

ArenaView& ArenaView::operator=(ArenaView&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(reserve_, other.reserve_);
  std::swap(base_, other.base_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(earlier_, other.earlier_);
  std::swap(error_, other.error_);
  return *this;
}

ArenaView::~ArenaView() {
  for (const Mapping& each : earlier_) ::munmap(each.base, each.bytes);
  if (base_ != nullptr) ::munmap(base_, mapped_bytes_);
}

std::size_t ArenaView::mapped_bytes() const noexcept {
  std::size_t bytes = mapped_bytes_;
  for (const Mapping& each : earlier_) bytes += each.bytes;
  return bytes;
}

std::byte* ArenaView::extend(std::uint64_t offset, std::size_t bytes) noexcept {
  error_ = 0;
  if (file_.size_bytes == 0 || offset > file_.size_bytes || bytes > file_.size_bytes - offset) return nullptr;
  const std::size_t end = offset + bytes;
  error_ = map(std::min<std::size_t>(file_.size_bytes, std::max(kFirstBytes, std::bit_ceil(end))));
  return error_ == 0 ? base_ + offset : nullptr;
}

int ArenaView::map(std::size_t bytes) noexcept {
  void* memory = MAP_FAILED;
  int error = 0;
  if (base_ != nullptr) {
    // An old size of 0 maps the same file once more.
    memory = ::mremap(base_, 0, bytes, MREMAP_MAYMOVE);
    if (memory == MAP_FAILED) error = errno;
  } else {
    Descriptor opened;
    error = open_arena(file_, opened);
    const bool lacks_descriptor = error == EMFILE && reserve_->valid();
    if (lacks_descriptor) {
      reserve_->reset();
      error = open_arena(file_, opened);
    }
    if (error == 0) {
      memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, opened.get(), 0);
      if (memory == MAP_FAILED) error = errno;
    }
    opened.reset();
    if (lacks_descriptor) *reserve_ = make_reserve();
  }
  if (error != 0) return error;
  if (base_ != nullptr) earlier_.push_back({base_, mapped_bytes_});
  base_ = static_cast<std::byte*>(memory);
  mapped_bytes_ = bytes;
  return 0;
}

}  // namespace shoal::shm
