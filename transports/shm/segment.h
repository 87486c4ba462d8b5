// The memory that a group shares: its layout, and which rank writes which part.
//
//   SegmentHeader | RankBlock and sets of each rank | window of each rank | ring of each ordered pair | common memory |
//   notices | keepers
//
// The file is sparse: pages exist from the first write on, so a pair that never communicates costs only address space.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include <shoal/limits.h>
#include <shoal/status.h>

#include "src/base/descriptor.h"
#include "transports/shm/arena.h"
#include "transports/shm/bell.h"
#include "transports/shm/process_identity.h"
#include "transports/shm/process_memory.h"
#include "transports/shm/ring.h"

namespace shoal::shm {

inline constexpr std::uint64_t kSegmentMagic = 0x315f6d68735f6873;
inline constexpr std::uint32_t kProtocolVersion = 12;

/// First bytes of the segment; written by the creator before any other rank maps it, then only read (except `closures`).
struct SegmentHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t ranks;
  std::uint64_t job_id;
  std::uint64_t tile_bytes;
  std::uint64_t slots;
  std::uint64_t window_bytes;
  std::uint64_t segment_bytes;
  alignas(kLineBytes)
      std::atomic<std::uint32_t> closures;  ///< changes when a RankBlock gets `closed`; lets progress() check one word
};

/// A set of the ranks of the segment in shared memory: a bit for each position. A view.
class RankBits {
 public:
  explicit RankBits(std::byte* memory) noexcept : words_(reinterpret_cast<std::atomic<std::uint64_t>*>(memory)) {}
  /// The word with the bit of this position.
  [[nodiscard]] std::atomic<std::uint64_t>& word_of(std::size_t position) const noexcept { return words_[position / 64]; }

 private:
  std::atomic<std::uint64_t>* words_;
};

/// What a rank says of itself. Written by it before it is ready, then only read.
struct RankCard {
  BellName bell;
  ProcessIdentity process;
  ProcessMark mark;  ///< of its memory
  ArenaFile arena;
};

/// RankBlock::closed.
inline constexpr std::uint32_t kOpen = 0;
inline constexpr std::uint32_t kClosed = 1;  ///< by the rank itself, in order
inline constexpr std::uint32_t kDied = 2;    ///< its process has ended before that; written by a peer

/// The state of one rank that its peers read.
struct alignas(kLineBytes) RankBlock {
  std::atomic<std::uint32_t> sleeping;        ///< 1 while the rank may block; cleared by it, or by the peer that wakes it
  std::atomic<std::uint32_t> awaits;          ///< while it may block: whose notify() wakes it, see writer_at(); written by it
  std::atomic<std::uint32_t> closed;          ///< kClosed or kDied when the rank has gone; set once
  std::atomic<std::uint32_t> reads_arenas;    ///< 1 when the rank can map the arenas of its peers; set by it, once
  std::atomic<std::uint32_t> reaches_memory;  ///< 1 when the rank has read and written memory of all peers; set by it, once
  std::atomic<std::uint32_t> rung;            ///< 1 when a bit of `rang` has been set; cleared by the rank
  alignas(kLineBytes) RankCard card;
};

/// How a thread of a rank that does not drive the transport is woken: see host_memory.h. Written by the rank, but for the end
/// of its sleep.
struct alignas(kLineBytes) Sleeper {
  BellName bell;
  std::atomic<std::uint32_t> sleeping;  ///< 1 while the thread may block; cleared by it, or by the peer that wakes it
  std::atomic<std::uint32_t> ready;     ///< 1: `bell` is valid
};

/// Where the parts lie. A value; every rank computes it from the same numbers.
struct SegmentLayout {
  std::size_t ranks = 0;
  RingShape ring;
  std::size_t window_bytes = 0;  ///< a multiple of the page size

  [[nodiscard]] std::size_t set_bytes() const { return round_up((ranks + 7) / 8, kLineBytes); }
  [[nodiscard]] std::size_t block_offset(std::size_t rank) const {
    return sizeof(SegmentHeader) + rank * (sizeof(RankBlock) + 2 * set_bytes());
  }
  [[nodiscard]] std::size_t polls_offset(std::size_t rank) const { return block_offset(rank) + sizeof(RankBlock); }
  [[nodiscard]] std::size_t rang_offset(std::size_t rank) const { return polls_offset(rank) + set_bytes(); }
  [[nodiscard]] std::size_t window_offset(std::size_t rank) const {
    return round_up(block_offset(ranks), kPageBytes) + rank * window_bytes;
  }
  /// Rings of all pairs, by sender, then by receiver. Neighbouring rings start on different cache sets, since their size is no
  /// power of two.
  [[nodiscard]] std::size_t ring_offset(std::size_t from, std::size_t to) const {
    return window_offset(ranks) + (from * (ranks - 1) + (to < from ? to : to - 1)) * ring.ring_bytes();
  }
  [[nodiscard]] std::size_t common_offset() const {
    return round_up(window_offset(ranks) + ranks * (ranks - 1) * ring.ring_bytes(), kPageBytes);
  }
  [[nodiscard]] std::size_t common_bytes() const { return kPageBytes + ranks * kCommonBytesPerRank; }
  [[nodiscard]] std::size_t notice_offset() const { return common_offset() + common_bytes(); }
  [[nodiscard]] std::size_t notice_bytes() const { return 3 * kPageBytes + ranks * kNoticeBytesPerRank; }
  [[nodiscard]] std::size_t keeper_offset() const { return notice_offset() + notice_bytes(); }
  [[nodiscard]] std::size_t keeper_bytes() const {
    return round_up(ranks * sizeof(Sleeper), kPageBytes) + kPageBytes + notice_bytes();
  }
  [[nodiscard]] std::size_t segment_bytes() const { return keeper_offset() + keeper_bytes(); }

  static constexpr std::size_t kPageBytes = 4096;
  static constexpr std::size_t kCommonBytesPerRank = 64 * (std::size_t{100} << 10);
  static constexpr std::size_t kNoticeBytesPerRank = std::size_t{64} << 10;
};

/// A mapping of the segment. Moves; unmaps itself.
class Segment {
 public:
  Segment() noexcept = default;
  Segment(Segment&& other) noexcept { *this = std::move(other); }
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  /// Makes an unnamed file of the right size that can neither shrink nor grow, writes the header and maps it. `file` receives
  /// it.
  static Result<Segment> create(const SegmentLayout& layout, std::uint64_t job_id, Descriptor* file);
  /// Maps the file made by another rank after checking its size, its seals and its header.
  static Result<Segment> attach(const SegmentLayout& layout, std::uint64_t job_id, const Descriptor& file);

  [[nodiscard]] bool mapped() const noexcept { return memory_ != nullptr; }
  [[nodiscard]] SegmentHeader& header() const noexcept { return *reinterpret_cast<SegmentHeader*>(memory_); }
  [[nodiscard]] RankBlock& block(std::size_t rank) const noexcept {
    return *reinterpret_cast<RankBlock*>(memory_ + layout_.block_offset(rank));
  }
  /// Peers whose rings the rank polls; written by it.
  [[nodiscard]] RankBits polls(std::size_t rank) const noexcept { return RankBits(memory_ + layout_.polls_offset(rank)); }
  /// Other peers that have sent a tile; set by them, cleared by the rank.
  [[nodiscard]] RankBits rang(std::size_t rank) const noexcept { return RankBits(memory_ + layout_.rang_offset(rank)); }
  [[nodiscard]] std::span<std::byte> window(std::size_t rank) const noexcept {
    return {memory_ + layout_.window_offset(rank), layout_.window_bytes};
  }
  [[nodiscard]] std::byte* ring(std::size_t from, std::size_t to) const noexcept {
    return memory_ + layout_.ring_offset(from, to);
  }
  [[nodiscard]] std::span<std::byte> common() const noexcept {
    return {memory_ + layout_.common_offset(), layout_.common_bytes()};
  }
  [[nodiscard]] std::span<std::byte> notices() const noexcept {
    return {memory_ + layout_.notice_offset(), layout_.notice_bytes()};
  }
  [[nodiscard]] std::span<std::byte> keepers() const noexcept {
    return {memory_ + layout_.keeper_offset(), layout_.keeper_bytes()};
  }
  [[nodiscard]] const SegmentLayout& layout() const noexcept { return layout_; }

 private:
  Status map(const Descriptor& file);

  SegmentLayout layout_;
  std::byte* memory_ = nullptr;
};

}  // namespace shoal::shm
