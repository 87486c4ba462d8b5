// The arena of a peer, mapped on demand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "src/base/descriptor.h"
#include "transports/shm/arena.h"

namespace shoal::shm {

/// A peer's arena for reading and writing. It is opened and mapped when a part of it is used for the first time, as far as it
/// is used: the mapping doubles. Earlier mappings stay, so that addresses in them remain valid. Once mapped it needs neither a
/// descriptor nor the process of the peer. Moves; unmaps itself. Thread rule: one thread at a time.
class ArenaView {
 public:
  ArenaView() noexcept = default;
  /// `reserve`: gives its descriptor where the process has none left, and gets another one; it outlives the view.
  ArenaView(const ArenaFile& file, Descriptor& reserve) noexcept : file_(file), reserve_(&reserve) {}
  ArenaView(ArenaView&& other) noexcept { *this = std::move(other); }
  ArenaView& operator=(ArenaView&& other) noexcept;
  ~ArenaView();

  /// The bytes [offset, offset + bytes) of the arena; null where it ends before, or where it cannot be mapped: see error().
  [[nodiscard]] std::byte* at(std::uint64_t offset, std::size_t bytes) noexcept {
    if (offset <= mapped_bytes_ && bytes <= mapped_bytes_ - offset && base_ != nullptr) [[likely]]
      return base_ + offset;
    return extend(offset, bytes);
  }
  /// The errno value for which at() has found no memory: ESRCH where the process has ended. 0: the arena ends before.
  [[nodiscard]] int error() const noexcept { return error_; }
  /// Address space that it takes.
  [[nodiscard]] std::size_t mapped_bytes() const noexcept;

 private:
  struct Mapping {
    std::byte* base = nullptr;
    std::size_t bytes = 0;
  };
  std::byte* extend(std::uint64_t offset, std::size_t bytes) noexcept;
  /// Maps the first `bytes` of the file. Returns 0 or an errno value.
  int map(std::size_t bytes) noexcept;

  ArenaFile file_;
  Descriptor* reserve_ = nullptr;
  std::byte* base_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  std::vector<Mapping> earlier_;
  int error_ = 0;
};

/// Opens the file of a peer's arena. Returns 0; ESRCH where the process has ended; else an errno value. Not permitted where
/// that process runs as another user, has more privileges, or has forbidden access to its memory (PR_SET_DUMPABLE).
int open_arena(const ArenaFile& file, Descriptor& opened) noexcept;

/// A descriptor that can be given up where one is needed.
Descriptor make_reserve() noexcept;

}  // namespace shoal::shm
