// Transport: a kind of wire. Link: one ordered connection to one peer. The interface that all wires share.
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

/// What travels in front of every tile.
struct TileHeader {
  std::uint32_t communicator = 0;  ///< which communicator of the process
  std::uint32_t sequence = 0;      ///< which call on it (modulo 2^32)
  std::uint32_t edge = 0;  ///< which message of the call on this link: the k-th send of the Program; kCallEdge = the signature
  std::uint32_t size_bytes = 0;    ///< payload that follows; at most Link::max_tile_bytes()
  std::uint64_t offset_bytes = 0;  ///< where the payload starts within that message

  bool operator==(const TileHeader&) const = default;
};
static_assert(sizeof(TileHeader) == 24);

/// A tile that has arrived. `data` points into the link's memory until Link::release().
struct Arrival {
  TileHeader header;
  std::span<const std::byte> data;
  bool lent = false;  ///< it lies in the sender's memory: see Link::intact()
};

/// One ordered connection to one peer: tiles arrive whole, unchanged, once, in the order in which they were sent, even where
/// the wire below (several sockets, unordered datagrams) keeps no order.
///
/// Nothing here blocks, allocates or logs after the connection is made.
/// Thread rule: one thread at a time (the engine's driver); hand-over between threads needs the engine's lock.
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

  /// Starts sending one tile; false where there is no room now (try again after progress). It may leave only in a later
  /// progress() or prepare_wait(); surely it has left once it counts in sent_tiles(). At least two tiles of the maximal
  /// size fit between sender and receiver. `data` must stay unchanged until the tile counts in sent_tiles().
  /// Precondition: header.size_bytes == data.size() <= max_tile_bytes(). On a broken link: false.
  virtual bool try_send(const TileHeader& header, std::span<const std::byte> data) = 0;
  /// As try_send(), but the tile may count in sent_tiles() only when the peer has released it, so that a link need not copy it.
  /// Not for a sender that, before it releases what the peer has lent in turn, waits for that.
  virtual bool try_lend(const TileHeader& header, std::span<const std::byte> data) { return try_send(header, data); }
  /// How many of the tiles taken by try_send no longer need their source memory, counted in the order of sending: the n-th
  /// tile's memory is free when sent_tiles() >= n. On some wires it grows only while the peer makes progress; but for tiles
  /// that were lent it does not wait for the peer to release any. Cheap.
  [[nodiscard]] virtual std::uint64_t sent_tiles() const noexcept = 0;

  /// For a sender that gives up: copies what the link still needs of the tiles taken so far, so that their memory is free
  /// although they do not count in sent_tiles() yet. Tiles that were lent and that the peer reads where they lie are taken back
  /// instead: they are not intact() there any more. May allocate.
  virtual void keep_copies() {}

  /// The oldest tile that has arrived whole and is not released; null where none has.
  [[nodiscard]] virtual const Arrival* peek() noexcept = 0;
  /// Whether the tile shown by peek() has been left alone by its sender until now; to be asked after reading it, before
  /// release(). False, which only tiles that are `lent` ever are: the sender has given up, and what was read may be anything.
  [[nodiscard]] virtual bool intact() noexcept { return true; }
  /// Gives the memory of the tile shown by peek() back to the link.
  virtual void release() noexcept = 0;

  /// ok, or why no more tiles will move: peer_failed when the peer closed or died ("rank 3 closed the connection"). Tiles that
  /// arrived before the failure can still be peeked.
  [[nodiscard]] virtual const Status& status() const noexcept = 0;
};

/// One end of a set of links.
///
/// Life: address() on every rank -> the addresses are exchanged -> connect() on every rank with all peers -> links are used ->
/// destruction (the peers see their links broken).
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
  /// `addresses[i]` is address() of peers[i]. Fails as a whole: the error names the peer that did not come by the deadline, or
  /// is what ends the time limit before. Called once.
  virtual Result<std::vector<std::unique_ptr<Link>>> connect(std::span<const int> peers, std::span<const std::string> addresses,
                                                             ConnectDeadline time_limit) = 0;

  /// Moves what can be moved on all links without blocking. True where anything moved (a tile arrived, room or memory
  /// became free, a link broke).
  virtual bool progress() = 0;

  /// A descriptor to wait for with poll(POLLIN) when there is nothing to do; -1 where the transport needs none.
  [[nodiscard]] virtual int wait_fd() const noexcept = 0;
  /// To be called before blocking on wait_fd(): from now on anything new that progress() or peek() could use makes wait_fd()
  /// readable. False where something new is there already: do not block. New is what the user has not been shown: a tile that
  /// peek() has shown wakes nobody, and room counts only after a try_send() that found none. So do all that can be done first.
  virtual bool prepare_wait() = 0;
  /// To be called after blocking, or instead of it. `readable`: wait_fd() was found readable and is to be drained, or was not
  /// looked at. Where it was not readable nothing is lost: what comes later makes it so for the next wait.
  virtual void finish_wait(bool readable) = 0;

  /// Whether each tile costs system calls, or about as much: fewer, larger ones then. The same at all ends.
  [[nodiscard]] virtual bool tiles_are_costly() const noexcept { return true; }

  /// Memory of `rank` (this rank or a peer) that every rank of the transport sees, for fused paths beside the links: zero at
  /// the start, 64-byte aligned, the same size for all. `rank` writes its own, the others read it. Empty where the wire has no
  /// such thing. Whoever waits for a change in a window looks at it again between prepare_wait() and blocking.
  [[nodiscard]] virtual std::span<std::byte> shared_window(int rank) noexcept {
    static_cast<void>(rank);
    return {};
  }
  /// Memory that every rank of the transport reads and writes, for windows of communicators that do not have all ranks: zero at
  /// the start, 64-byte aligned, the same size for all. Empty where the wire has no such thing.
  [[nodiscard]] virtual std::span<std::byte> common_memory() noexcept { return {}; }
  /// Ranks that see the windows and that memory, this one included.
  [[nodiscard]] virtual int window_count() const noexcept { return 0; }
  /// Where `data` lies in the part of this process's memory that every rank of the transport reads and writes; nothing where
  /// not all of it does, or where the ranks share none. Cheap.
  [[nodiscard]] virtual std::optional<std::uint64_t> shared_offset(const void* data, std::size_t bytes) const noexcept {
    static_cast<void>(data), static_cast<void>(bytes);
    return std::nullopt;
  }
  /// The memory of the peer `rank` for which its shared_offset() said `offset`; null where there is none.
  [[nodiscard]] virtual std::byte* shared_memory(int rank, std::uint64_t offset, std::size_t bytes) noexcept {
    static_cast<void>(rank), static_cast<void>(offset), static_cast<void>(bytes);
    return nullptr;
  }
  /// Whether every rank of the transport can have any memory of all others copied, by copy_from() and copy_to(). Once true, it
  /// stays so. Cheap.
  [[nodiscard]] virtual bool reaches_all_memory() const noexcept { return false; }
  /// Copies `bytes` bytes at `address` of the process of the peer `rank` to `target`. Precondition: reaches_all_memory(), and
  /// the peer leaves them alone meanwhile. Errors: peer_failed, where it has ended or has no such memory; system_error.
  virtual Status copy_from(int rank, std::uint64_t address, std::byte* target, std::size_t bytes) {
    static_cast<void>(rank), static_cast<void>(address), static_cast<void>(target), static_cast<void>(bytes);
    return {StatusCode::unsupported, "this transport does not copy from the memory of peers"};
  }
  /// The other way: `source` to `address` of the peer. Precondition and errors as of copy_from().
  virtual Status copy_to(int rank, std::uint64_t address, const std::byte* source, std::size_t bytes) {
    static_cast<void>(rank), static_cast<void>(address), static_cast<void>(source), static_cast<void>(bytes);
    return {StatusCode::unsupported, "this transport does not copy to the memory of peers"};
  }
  /// Wakes every peer that blocks on its wait_fd() after prepare_wait(); to be called after writing to shared memory.
  /// Orders the writes before the look at who sleeps. Cheap where nobody does.
  virtual void notify_peers() {}
  /// The same, but wakes nobody else than `ranks` (this one may be among them).
  virtual void notify(std::span<const int> ranks) {
    static_cast<void>(ranks);
    notify_peers();
  }

  /// Payloads that are sent from now on carry check sums, where the wire could change them unnoticed: a receiver has damaged
  /// ones sent again. Each rank decides for what it sends.
  virtual void use_check_sums() noexcept {}
  /// Payloads that are sent from now on travel packed, without loss, where that makes them smaller and the wire knows how. Each
  /// rank decides for what it sends; every receiver can unpack.
  virtual void use_packing() noexcept {}

  /// In a child of fork(): gives up its copies of connections, which would keep them open after the parent's death, and leaves
  /// those of the parent as they are. The links are alive; nothing else is called there but destructors.
  virtual void leave_to_parent() noexcept {}

  /// Bytes of buffers held for the links of this end.
  [[nodiscard]] virtual std::size_t memory_bytes() const noexcept = 0;
};

}  // namespace shoal
