// Windows for groups: which part of the memory that the ranks of a node share belongs to which communicator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace shoal {

/// Memory that every rank of a transport reads and writes, in which the members of a group find windows of their own without
/// asking each other. The first member takes a free block, the other members find it by the group's key, and the last member
/// to leave gives it back. The board needs no name and no descriptor; pages exist from the first write on.
///
///   board = header with an entry a block | block x kBlocks;  block = window of each member
///
/// All members get the same answer, windows or none, whenever each of them asks. So the first group that finds no free block
/// is also the last that asks for one: from then on groups that are not on the board have no windows (and use the links).
///
/// A rank that dies without leaving keeps its block from being reused, and delays no rank. Thread rule: any thread of any
/// process.
class PeerMemoryBoard {
 public:
  static constexpr std::size_t kBlocks = 64;  ///< groups of the ranks of a node that have windows at the same time

  /// On `memory`, which must outlive it: zero at the start, the same for all `ranks` that share it.
  PeerMemoryBoard(std::span<std::byte> memory, int ranks);
  /// Bytes of a rank's window; 0: there is no room for any.
  [[nodiscard]] std::size_t window_bytes() const noexcept { return window_bytes_; }

  /// The block of a group of `members` ranks, which all of them know by `key` (not 0, of this group only). Its windows are
  /// zero until a member writes. Nothing where the group has none. Each member joins once and leaves once.
  std::optional<std::size_t> join(std::uint64_t key, std::size_t members);
  /// This member no longer uses the windows.
  void leave(std::size_t block) noexcept;
  [[nodiscard]] std::span<std::byte> window(std::size_t block, std::size_t member) const noexcept;

 private:
  struct Header;
  [[nodiscard]] Header& header() const noexcept;

  std::span<std::byte> memory_;
  std::size_t ranks_;
  std::size_t window_bytes_ = 0;
};

/// A group's block on the board, given back at the end. Moves.
class PeerMemoryLease {
 public:
  PeerMemoryLease() = default;
  PeerMemoryLease(PeerMemoryBoard board, std::uint64_t key, std::size_t members);
  PeerMemoryLease(PeerMemoryLease&& other) noexcept { *this = std::move(other); }
  PeerMemoryLease& operator=(PeerMemoryLease&& other) noexcept;
  ~PeerMemoryLease() { leave(); }

  /// Of each member; empty where the group has none.
  [[nodiscard]] std::vector<std::span<std::byte>> windows() const;
  void leave() noexcept;
  /// Forgets the block, which belongs to the parent process: in a child of fork().
  void abandon() noexcept { block_.reset(); }

 private:
  std::optional<PeerMemoryBoard> board_;
  std::optional<std::size_t> block_;
  std::size_t members_ = 0;
};

}  // namespace shoal
