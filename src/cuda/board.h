// Board: a piece of host memory that the ranks of a node share for one DeviceGroup. Streams and kernels write and read its
// flags and places; hosts its signatures.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <shoal/communicator.h>
#include <shoal/status.h>

#include "kernels/parameters.h"

namespace shoal::cuda {

/// Most pieces of a message that are in flight at once.
inline constexpr std::size_t kMaxSlots = 8;

/// A rank's description of a call, which is compared with those of its peers.
struct Signature {
  std::uint64_t count = 0;
  /// Where shares differ: a digest of their sizes, never 0. all_to_all: 1, as each rank has its own sizes.
  std::uint64_t counts = 0;
  CollectiveKind kind = CollectiveKind::all_reduce;
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  std::uint32_t root = 0;  ///< of a send or receive: the other rank

  friend bool operator==(const Signature&, const Signature&) = default;
};

std::string to_string(const Signature& signature);

/// Thread rule: as the atomics that it is made of; sign() by one thread at a time.
class Board {
 public:
  /// Collective over `node`, whose ranks share a host. Errors: those of Communicator; unsupported where the ranks cannot reach
  /// each other's memory (containers of their own).
  static Result<std::unique_ptr<Board>> create(Communicator& node);
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;
  ~Board();

  [[nodiscard]] void* memory() noexcept { return layout_; }
  [[nodiscard]] static std::size_t bytes() noexcept;

  /// How far `writer` is, for `reader`. Written only by the streams of `writer`, except in release(). A word for each reader,
  /// so that a rank can release its own streams without those of its peers.
  [[nodiscard]] std::uint32_t* flag(int reader, int writer) noexcept;
  /// Where the data lies that `writer` gives in slot `slot`. Written by its streams before its flags.
  [[nodiscard]] kernels::Place* place(int writer, std::size_t slot) noexcept;

  /// Releases every wait of `reader` for values up to `last`. Streams of peers that do not know of it may still write older
  /// values, so this is repeated until `reader`'s streams have completed all calls.
  void release(int reader, int ranks, std::uint32_t last) noexcept;
  /// Records, once, that `rank` has aborted because of `cause`: what its streams announce from now on is invalid. To be called
  /// before release().
  void give_up(int rank, const Status& cause) noexcept;
  /// ok, or why one of the ranks has aborted. A thread that has seen an announcement made after give_up() sees that cause,
  /// too.
  [[nodiscard]] Status given_up(int ranks) const;

  /// Publishes the signature of `rank` for its call number `sequence`, and compares it with those of the ranks that have
  /// signed that call already. Of any two ranks at least the later one sees the other's. Returns the first rank with another
  /// signature.
  struct Disagreement {
    int rank = 0;
    Signature other;
  };
  std::optional<Disagreement> sign(int rank, int ranks, std::uint64_t sequence, const Signature& signature) noexcept;
  /// The last call that `rank` has signed; nothing before the first.
  [[nodiscard]] std::optional<std::pair<std::uint64_t, Signature>> last_signed(int rank) const noexcept;

 private:
  struct Layout;
  explicit Board(Layout* layout) noexcept : layout_(layout) {}
  Layout* layout_;
};

}  // namespace shoal::cuda
