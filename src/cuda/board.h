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

/// Pieces of a message that are under way at once at most.
inline constexpr std::size_t kMaxSlots = 8;

/// What a rank is asked for, for comparison with what the others are asked for.
struct Signature {
  std::uint64_t count = 0;
  /// Where shares differ: a digest of their sizes, never 0. all_to_all: 1, as each rank has sizes of its own.
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

  /// How far `writer` is, for the eyes of `reader`. Written by the streams of `writer` only, but for release(). A word for each
  /// reader, so that a rank can let its own streams go on without the others'.
  [[nodiscard]] std::uint32_t* flag(int reader, int writer) noexcept;
  /// Where `writer` has laid what it gives in slot `slot`. Written by its streams before its flags.
  [[nodiscard]] kernels::Place* place(int writer, std::size_t slot) noexcept;

  /// Lets every wait of `reader` for values up to `last` go on. Streams of others that have not heard of it may still write
  /// older values, so this is repeated until `reader`'s streams are through.
  void release(int reader, int ranks, std::uint32_t last) noexcept;
  /// `rank` has given up because of `cause`, once: what its streams announce from now on means nothing. To be called before
  /// release().
  void give_up(int rank, const Status& cause) noexcept;
  /// ok, or why one of the ranks has given up. Whoever has seen an announcement that came after give_up() sees that, too.
  [[nodiscard]] Status given_up(int ranks) const;

  /// Says what `rank` is asked for in its call number `sequence`, and compares with those that have come to that call already.
  /// Of any two ranks at least one, the later, sees the other's. The first other rank that was asked for something else.
  struct Disagreement {
    int rank = 0;
    Signature other;
  };
  std::optional<Disagreement> sign(int rank, int ranks, std::uint64_t sequence, const Signature& signature) noexcept;
  /// The call that `rank` has signed last; nothing before the first.
  [[nodiscard]] std::optional<std::pair<std::uint64_t, Signature>> last_signed(int rank) const noexcept;

 private:
  struct Layout;
  explicit Board(Layout* layout) noexcept : layout_(layout) {}
  Layout* layout_;
};

}  // namespace shoal::cuda
