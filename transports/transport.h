// Transport: a kind of network or memory that moves tiles. Link: one ordered connection to one peer. The common interface.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <shoal/status.h>

#include "transports/common/connect_deadline.h"

namespace shoal {

/// The header of every tile.
struct TileHeader {
  std::uint32_t communicator = 0;  ///< number of the communicator in the process
  std::uint32_t sequence = 0;      ///< number of the call on it (modulo 2^32)
  std::uint32_t edge = 0;          ///< the k-th send of the Program on this link; kCallEdge = the signature of the call
  std::uint32_t size_bytes = 0;    ///< size of the payload; at most Link::max_tile_bytes()
  std::uint64_t offset_bytes = 0;  ///< offset of the payload within that message

  bool operator==(const TileHeader&) const = default;
};
static_assert(sizeof(TileHeader) == 24);

/// A tile that has arrived. `data` points into the link's memory until Link::release().
struct Arrival {
  TileHeader header;
  std::span<const std::byte> data;
  bool lent = false;  ///< the payload is in the sender's memory: see Link::intact()
};

/// One ordered connection to one peer. Tiles arrive whole, unchanged, once, and in the order in which they were sent, even
/// where the network below (several sockets, unordered datagrams) keeps no order.
///
/// Nothing here blocks, allocates or logs after the connection is made.
/// Thread rule: one thread at a time (the driver); a hand-over between threads needs the driver lock.
class Link {
 public:
  Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  virtual ~Link() = default;

  /// The rank at the other end.
  [[nodiscard]] virtual int peer() const noexcept = 0;
  /// The largest payload that try_send takes; the same at both ends.
  [[nodiscard]] virtual std::size_t max_tile_bytes() const noexcept = 0;

  /// Starts sending one tile; false where there is no room now (try again after progress). The tile may leave only in a later
  /// progress() or prepare_wait(); once it counts in sent_tiles(), it has left. At least two tiles of the maximal size fit
  /// between sender and receiver. `data` must stay unchanged until the tile counts in sent_tiles(). Precondition:
  /// header.size_bytes == data.size() <= max_tile_bytes(). On a broken link: false.
  virtual bool try_send(const TileHeader& header, std::span<const std::byte> data) = 0;
  /// As try_send(), but zero-copy: the tile may count in sent_tiles() only when the peer has released it, so a link need not
  /// copy it. Not for a sender that waits for that count before it releases what the peer has lent: two such ranks would
  /// deadlock.
  virtual bool try_lend(const TileHeader& header, std::span<const std::byte> data) { return try_send(header, data); }
  /// How many of the tiles taken by try_send no longer need their source memory, counted in the order of sending: the n-th
  /// tile's memory is free when sent_tiles() >= n. On some transports it grows only while the peer makes progress. It does
  /// not wait for the peer to release a tile, except tiles that were lent. Cheap.
  [[nodiscard]] virtual std::uint64_t sent_tiles() const noexcept = 0;

  /// For a sender that aborts: copies what the link still needs of the tiles taken so far, so that their memory is free
  /// although they do not count in sent_tiles() yet. Lent tiles that the peer reads in place are reclaimed instead: for these
  /// the peer's intact() returns false from now on. May allocate.
  virtual void keep_copies() {}

  /// The oldest tile that has arrived whole and is not released; null where there is none.
  [[nodiscard]] virtual const Arrival* peek() noexcept = 0;
  /// Whether the sender has left the tile shown by peek() unchanged until now. To be called after reading the tile, before
  /// release(). False only for tiles that are `lent`: the sender has aborted, and the bytes that were read are undefined.
  [[nodiscard]] virtual bool intact() noexcept { return true; }
  /// Gives the memory of the tile shown by peek() back to the link.
  virtual void release() noexcept = 0;

  /// ok, or why no more tiles will move: peer_failed when the peer closed or died ("rank 3 closed the connection"). Tiles
  /// that arrived before the failure can still be peeked.
  [[nodiscard]] virtual const Status& status() const noexcept = 0;

  /// False for a link that Transport::connect() has left unconnected, until the peer has answered: then try_send() returns
  /// false and peek() null. Once true, it stays true.
  [[nodiscard]] virtual bool connected() const noexcept { return true; }
  /// Starts to connect such a link; progress() does the rest, at both ends. Where that fails, status() says why. `peer_too`:
  /// the peer requests the link as well, so that there is no hurry to tell it. No effect where it is connected or requested.
  virtual void request(bool peer_too) { static_cast<void>(peer_too); }
};

/// One rank's endpoint: a set of links.
///
/// Life: address() on every rank -> the addresses are exchanged -> connect() on every rank with all peers -> links are used,
/// those that connect_only() has left out after Link::request() -> destruction (the peers see their links broken).
/// The links and the transport may be destroyed in either order.
/// Thread rule: one thread at a time, as for Link; the links of a transport count as part of it.
class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  /// Opaque bytes by which peers find this end; non-empty, at most 1 KiB. Valid after construction.
  [[nodiscard]] virtual std::string address() const = 0;

  /// Connects to every rank of `peers` (without this rank; each of them calls connect with this rank among its peers).
  /// `addresses[i]` is address() of peers[i]. Fails as a whole: the error names the peer that did not connect by the
  /// deadline, or is the one by which `time_limit` ended the wait earlier. Called once.
  virtual Result<std::vector<std::unique_ptr<Link>>> connect(std::span<const int> peers, std::span<const std::string> addresses,
                                                             ConnectDeadline time_limit) = 0;

  /// Moves what can be moved on all links without blocking. Returns true where anything moved (a tile arrived, room or memory
  /// became free, a link broke).
  virtual bool progress() = 0;

  /// Appends to `links` those on which something has happened since the last call: a tile can be peeked that could not be
  /// before, or the link has ended. A link may also be there without a cause. So a caller finds its work without a look at
  /// every link. False where the transport does not keep track: the caller looks at every link.
  virtual bool take_active(std::vector<Link*>& links) {
    static_cast<void>(links);
    return false;
  }

  /// A descriptor to wait for with poll(POLLIN) when there is nothing to do; -1 where the transport needs none.
  [[nodiscard]] virtual int wait_fd() const noexcept = 0;
  /// To be called before blocking on wait_fd(): from now on, any new work for progress() or peek() makes wait_fd() readable.
  /// False where there is new work already: do not block. Only events that the caller has not seen count as new: a tile that
  /// peek() has shown causes no wake-up, and room counts only after a try_send() that found none. So the caller must first do
  /// all the work that it can.
  virtual bool prepare_wait() = 0;
  /// To be called after blocking, or instead of it. `readable`: wait_fd() was readable and is to be drained, or the caller
  /// did not check it. Where it was not readable nothing is lost: a later event makes it readable for the next wait.
  virtual void finish_wait(bool readable) = 0;

  /// Whether each tile costs system calls, or about as much: the caller then uses fewer, larger tiles. The same at all ends.
  [[nodiscard]] virtual bool tiles_are_costly() const noexcept { return true; }

  /// Memory of `rank` (this rank or a peer) that every rank of the transport sees, for paths that bypass the links: zero at
  /// the start, 64-byte aligned, the same size for all ranks. Only `rank` writes it, all other ranks read it. Empty where the
  /// transport shares no memory. A caller that waits for a change in a window checks it again between prepare_wait() and
  /// blocking.
  [[nodiscard]] virtual std::span<std::byte> shared_window(int rank) noexcept {
    static_cast<void>(rank);
    return {};
  }
  /// Memory that every rank of the transport reads and writes, for windows of communicators that do not have all ranks: zero
  /// at the start, 64-byte aligned, the same size for all ranks. Empty where the transport shares no memory.
  [[nodiscard]] virtual std::span<std::byte> common_memory() noexcept { return {}; }
  /// Number of ranks that see the windows and that memory, including this rank.
  [[nodiscard]] virtual int window_count() const noexcept { return 0; }
  /// Offset of `data` in the part of this process's memory that every rank of the transport reads and writes; nullopt where
  /// not all of `data` lies there, or where the ranks share no such memory. Cheap.
  [[nodiscard]] virtual std::optional<std::uint64_t> shared_offset(const void* data, std::size_t bytes) const noexcept {
    static_cast<void>(data), static_cast<void>(bytes);
    return std::nullopt;
  }
  /// The memory of the peer `rank` for which shared_offset() returned `offset` there; null where there is none.
  [[nodiscard]] virtual std::byte* shared_memory(int rank, std::uint64_t offset, std::size_t bytes) noexcept {
    static_cast<void>(rank), static_cast<void>(offset), static_cast<void>(bytes);
    return nullptr;
  }
  /// Whether every rank of the transport can copy from and to any memory of all other ranks, by copy_from() and copy_to().
  /// Once true, it stays true. Cheap.
  [[nodiscard]] virtual bool reaches_all_memory() const noexcept { return false; }
  /// Copies `bytes` bytes at `address` of the process of the peer `rank` to `target`. Precondition: reaches_all_memory(), and
  /// the peer leaves these bytes unchanged meanwhile. Errors: peer_failed where the peer has ended or has no such memory;
  /// system_error.
  virtual Status copy_from(int rank, std::uint64_t address, std::byte* target, std::size_t bytes) {
    static_cast<void>(rank), static_cast<void>(address), static_cast<void>(target), static_cast<void>(bytes);
    return {StatusCode::unsupported, "this transport does not copy from the memory of peers"};
  }
  /// The reverse: copies `source` to `address` of the peer. Precondition and errors as for copy_from().
  virtual Status copy_to(int rank, std::uint64_t address, const std::byte* source, std::size_t bytes) {
    static_cast<void>(rank), static_cast<void>(address), static_cast<void>(source), static_cast<void>(bytes);
    return {StatusCode::unsupported, "this transport does not copy to the memory of peers"};
  }
  /// Memory that every rank of the transport reads and writes, for notices of ranks to each other (aborts, exits): zero at the
  /// start, page-aligned, the same size for all ranks, used from the first write on. Empty where the transport shares no
  /// memory.
  [[nodiscard]] virtual std::span<std::byte> notice_memory() noexcept { return {}; }
  /// Wakes those of `ranks` that block on wait_fd() after prepare_wait(), whomever they await; to be called after a seq_cst
  /// write to shared memory, which each of them checks between its prepare_wait() and blocking.
  virtual void wake(std::span<const int> ranks) { static_cast<void>(ranks); }
  /// Appends to `links` those whose peers have ended or closed their ends since the last call; each once. Cheap, unless it is
  /// to `look`: then the transport asks the system for processes that have ended.
  virtual void take_ended(std::vector<Link*>& links, bool look) { static_cast<void>(links), static_cast<void>(look); }
  /// From the next prepare_wait() on, of the peers' notify() and notify_peers() only those of `rank` need to wake this one; or
  /// of any rank (kAnyWriter, at the start), or of none (kNoWriter). The caller checks between prepare_wait() and blocking that
  /// it still waits for that rank alone.
  virtual void await_writer(int rank) noexcept { static_cast<void>(rank); }
  static constexpr int kAnyWriter = -1;
  static constexpr int kNoWriter = -2;
  /// Wakes every peer that blocks on its wait_fd() after prepare_wait() and awaits this rank; to be called after writing to
  /// shared memory. Orders these writes before the check which ranks sleep. Cheap where no rank sleeps.
  virtual void notify_peers() {}
  /// The same, but wakes only `ranks` (this rank may be among them).
  virtual void notify(std::span<const int> ranks) {
    static_cast<void>(ranks);
    notify_peers();
  }

  /// From now on payloads that are sent carry checksums, where the network could change them undetected: a receiver has
  /// damaged payloads retransmitted. Each rank decides for what it sends.
  virtual void use_check_sums() noexcept {}
  /// From now on payloads that are sent are compressed without loss, where the transport can do that and it makes them
  /// smaller. Each rank decides for what it sends; every receiver can unpack.
  virtual void use_packing() noexcept {}

  /// In a child of fork(): closes its copies of connections, which would otherwise keep them open after the parent's death,
  /// and leaves the parent's connections unchanged. The links still exist; in the child only destructors may be called after
  /// this.
  virtual void leave_to_parent() noexcept {}

  /// Bytes of buffers held for the links of this end.
  [[nodiscard]] virtual std::size_t memory_bytes() const noexcept = 0;

  /// To be called before connect(), where that is to connect the links to `ranks` only, and to leave the others for
  /// Link::request(). If a rank names another, that one names it too. No effect where the transport has no such links: it
  /// connects all of them, or connects each at its first use.
  virtual void connect_only(std::span<const int> ranks) { static_cast<void>(ranks); }
};

}  // namespace shoal
