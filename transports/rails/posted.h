// Operations in flight on the rails: those that a completion can name.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "transports/rails/rail.h"

namespace shoal::rails {

class RailsPeer;

/// Base of every operation of a rails transport: leads from a completion to the object that posted the operation.
struct Posted : Operation {
  enum class Role : std::uint8_t { part, control, record, receive };
  Role role = Role::part;
  std::uint8_t rail = 0;
  bool in_flight = false;
  RailsPeer* peer = nullptr;  ///< null for a receive
};

/// A piece of a tile, or the announcement of one whose pieces are written.
struct Part : Posted {
  std::uint32_t slot = 0;
  std::uint32_t piece = 0;
  bool announces = false;
  bool queued = false;
  bool resend = false;  ///< to be sent once more when it has completed
  bool lent = false;    ///< in flight from the caller's memory, which the rail reads until it has completed
};

/// A short message from memory of its own.
struct ShortMessage : Posted {
  std::byte* memory = nullptr;
  std::size_t bytes = 0;
};

/// Memory in which a message arrives.
struct Receive : Posted {
  std::span<std::byte> memory;
};

/// Memory whose pages are allocated at the first touch, and its registrations on each rail.
class Memory {
 public:
  Memory() noexcept = default;
  explicit Memory(std::size_t bytes) : bytes_(bytes) {
    void* got = bytes == 0 ? MAP_FAILED : ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    data_ = got == MAP_FAILED ? nullptr : static_cast<std::byte*>(got);
  }
  Memory(Memory&& other) noexcept { *this = std::move(other); }
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(registrations, other.registrations);
    return *this;
  }
  /// Precondition: the registrations have been dismissed.
  ~Memory() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return data_ == nullptr ? 0 : bytes_; }
  [[nodiscard]] void* descriptor(std::size_t rail) const noexcept {
    return rail < registrations.size() ? registrations[rail].descriptor : nullptr;
  }

  std::vector<Registration> registrations;  ///< by rail; empty where none is needed

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace shoal::rails
