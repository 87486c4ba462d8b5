// NoticeBoard: notices from each rank of a host to all others, in memory that they share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "src/topology/group_name.h"

namespace shoal {

/// One rank's view of the board. Each rank has a ring of notices that it alone writes and all other ranks read.
///
///   count, log of the latest writers | area of each rank: what it has written, its cursors in the others' rings, its ring
///
/// A look costs one load: `count` grows with each notice. Writing costs by the size of the notice, reading by the notices that
/// are new, as the log names their writers. No notice is overwritten before every reader has passed it. Where a slow reader is
/// in the way, the writer takes back what that one has not read; after that the reader says when it reads again.
///
/// What other processes have written is checked before use. Ranks are positions among those that share the memory. Only
/// 64-bit words are read and written, atomically. Thread rule: one thread of each process.
class NoticeBoard {
 public:
  static constexpr std::size_t kMostBytes = 4096;  ///< of a payload

  struct Notice {
    std::uint32_t kind = 0;
    GroupName group;
    std::vector<std::byte> payload;
  };
  /// A set of ranks.
  class Receivers {
   public:
    explicit Receivers(std::size_t ranks) : words_((ranks + 63) / 64) {}
    void insert(std::size_t rank) { words_[rank / 64] |= bit(rank); }
    void erase(std::size_t rank) { words_[rank / 64] &= ~bit(rank); }
    [[nodiscard]] bool contains(std::size_t rank) const { return (words_[rank / 64] & bit(rank)) != 0; }
    [[nodiscard]] std::span<const std::uint64_t> words() const noexcept { return words_; }

   private:
    static std::uint64_t bit(std::size_t rank) noexcept { return std::uint64_t{1} << (rank % 64); }
    std::vector<std::uint64_t> words_;
  };
  /// What read() has found.
  struct News {
    struct One {
      std::size_t writer = 0;
      Notice notice;
    };
    std::vector<One> notices;
    std::vector<std::size_t> malformed;        ///< writers whose part of the memory is invalid; each is reported once
    std::vector<std::size_t> writers_waiting;  ///< are to be woken: they wait until this rank reads
  };

  /// On `memory`, which must outlive it: zero at the start, the same for all `ranks` that share it.
  NoticeBoard(std::span<std::byte> memory, std::size_t ranks, std::size_t own);
  /// There is room for some notices of the largest size.
  [[nodiscard]] bool usable() const noexcept;
  [[nodiscard]] std::size_t ranks() const noexcept { return ranks_; }

  /// Writes a notice with up to kMostBytes. False where notices that slowest() has not read are in the way.
  bool write(std::uint32_t kind, const GroupName& group, const Receivers& receivers, std::span<const std::byte> payload);
  /// The reader with the most unread words; nothing where no reader has any.
  [[nodiscard]] std::optional<std::size_t> slowest() const;
  /// Removes the notices for `reader` that it has not read, and returns them in order; nullopt where its cursor is invalid.
  /// From now on the reader gets none, until it returns() and the writer admits it.
  std::optional<std::vector<Notice>> take_back(std::size_t reader);
  [[nodiscard]] bool is_taken_back(std::size_t reader) const { return taken_back_[reader]; }
  /// It reads again.
  [[nodiscard]] bool returns(std::size_t reader) const;
  /// It gets the notices that are written from now on. Also before it returns: then these may be in the way again.
  void admit(std::size_t reader);
  /// Whether readers should say when they have read something.
  void set_waiting(bool waiting);

  /// Notices may have been written that read() has not seen. Orders this look after earlier seq_cst stores.
  [[nodiscard]] bool has_news() const noexcept;
  /// Reads all notices that have been announced.
  void read(News& news);
  /// Reads all notices of `writer`, also one that it died before announcing.
  void read_from(std::size_t writer, News& news);

 private:
  struct Head;
  struct Area;
  using Word = std::atomic<std::uint64_t>;
  enum class Step { read, end, again, malformed };

  [[nodiscard]] Head& head() const noexcept;
  [[nodiscard]] Area& area(std::size_t rank) const noexcept;
  /// The cursor of `reader` in the ring of `writer`.
  [[nodiscard]] Word& cursor(std::size_t reader, std::size_t writer) const noexcept;
  [[nodiscard]] Word& ring(std::size_t writer, std::uint64_t at) const noexcept;
  [[nodiscard]] std::uint64_t load(std::size_t writer, std::uint64_t at) const noexcept;
  /// Words of the notice at `at`, if it is well-formed and ends by `end`; else 0.
  [[nodiscard]] std::size_t notice_words(std::size_t writer, std::uint64_t at, std::uint64_t end) const noexcept;
  [[nodiscard]] bool is_for(std::size_t reader, std::size_t writer, std::uint64_t at) const noexcept;
  [[nodiscard]] Notice copy(std::size_t writer, std::uint64_t at) const;
  Step read_one(std::size_t writer, std::uint64_t end, News& news);
  /// Lets all ranks look at what this one has written.
  void announce() noexcept;
  [[nodiscard]] std::uint64_t oldest_cursor() const noexcept;

  std::span<std::byte> memory_;
  std::size_t ranks_;
  std::size_t own_;
  std::size_t area_bytes_ = 0;
  std::size_t ring_words_ = 0;
  std::size_t set_words_;
  std::uint64_t written_ = 0;  // words in the ring of this rank, since the start
  std::uint64_t oldest_ = 0;   // no reader's cursor is below
  std::uint64_t seen_ = 0;     // of Head::count
  bool waiting_ = false;
  std::vector<bool> taken_back_;  // by reader
  std::vector<bool> malformed_;   // by writer
};

}  // namespace shoal
