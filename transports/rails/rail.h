// Rail: one endpoint on one network device. The narrow interface between the ofi transport and libfabric; tests inject faults
// here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <shoal/status.h>

namespace shoal::rails {

/// An operation that was posted and has not completed. The provider may use these bytes until then (FI_CONTEXT, FI_CONTEXT2).
struct Operation {
  void* provider[8] = {};
};

/// The end of an operation. Completions arrive in any order: neither that of posting nor that of the network.
struct Completion {
  enum class Kind : std::uint8_t {
    sent,      ///< a send or write of this end has completed: its memory is free
    received,  ///< a message lies in the memory of this receive
    written,   ///< a peer has written into this end's memory, and all bytes of that write have arrived
  };
  Kind kind = Kind::sent;
  Operation* operation = nullptr;  ///< for `written` only where writes consume receives
  std::size_t bytes = 0;           ///< size of a message
  std::uint32_t data = 0;          ///< the 32 bits of a write
  int error = 0;                   ///< an errno value; 0 = success
  int provider_error = 0;          ///< the provider's own error number
};

/// Memory that is registered with a rail. A plain value; Rail::deregister() ends the registration.
struct Registration {
  void* handle = nullptr;
  void* descriptor = nullptr;  ///< for local use
  std::uint64_t key = 0;       ///< for peers
  std::uint64_t base = 0;      ///< its first byte, as peers address it
};

/// Bytes to send, and the descriptor of their memory where the rail needs one.
struct Piece {
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  void* descriptor = nullptr;
  bool may_redirect = false;  ///< Rail::redirect() may follow
};

/// Properties and limits of the provider.
struct RailTraits {
  std::string provider;               ///< "tcp;ofi_rxm"
  std::string device;                 ///< "eth0"
  std::size_t max_message_bytes = 0;  ///< of a send
  std::size_t max_write_bytes = 0;    ///< 0: no one-sided writes that carry 32 bits
  bool emulated_writes = false;       ///< the provider emulates writes by messages and copies: sending messages is faster
  std::size_t receives = 0;           ///< that may be posted
  bool local_registration = false;    ///< memory must be registered before it is sent from or received into
  bool writes_take_receives = false;  ///< each write consumes a posted receive of its target
  /// Peers on this host may read messages in this end's memory, even after this end has closed: no zero-copy for such peers.
  bool local_peers_read = false;
};

/// A post did not happen because a queue is full: read completions, then try again. All posts return 0, this, or -errno.
inline constexpr int kAgain = -11;

/// A reliable datagram endpoint with its completion queue: messages arrive once and whole, in any order.
/// Thread rule: that of the transport, one thread at a time.
class Rail {
 public:
  Rail() = default;
  Rail(const Rail&) = delete;
  Rail& operator=(const Rail&) = delete;
  virtual ~Rail() = default;

  [[nodiscard]] virtual const RailTraits& traits() const noexcept = 0;
  /// Opaque bytes by which peers find this endpoint.
  [[nodiscard]] virtual std::string address() const = 0;
  /// Adds a peer by its address; returns the number of that peer at this end.
  virtual Result<std::uint64_t> add_peer(std::string_view address) = 0;

  /// Registers memory for sends and receives; with `for_peers`, also for writes by peers.
  virtual Result<Registration> register_memory(std::span<std::byte> memory, bool for_peers) = 0;
  /// Ends a registration: afterwards no peer can reach that memory.
  virtual void deregister(Registration& registration) noexcept = 0;

  virtual int post_receive(Operation& operation, std::span<std::byte> memory, void* descriptor) = 0;
  /// At most two pieces, which leave as one message.
  virtual int post_send(Operation& operation, std::uint64_t peer, std::span<const Piece> pieces) = 0;
  /// Whether redirect() is possible for that peer: the rail copies pieces itself, during calls of this interface; no card
  /// reads them.
  [[nodiscard]] virtual bool redirects(std::uint64_t peer) const noexcept {
    static_cast<void>(peer);
    return false;
  }
  /// Moves the second piece of a posted send, one with `may_redirect`, to `data`, which holds the same bytes. Only where
  /// redirects().
  virtual void redirect(Operation& operation, const std::byte* data) noexcept {
    static_cast<void>(operation), static_cast<void>(data);
  }
  /// `data` arrives after all bytes of the piece.
  virtual int post_write(Operation& operation, std::uint64_t peer, const Piece& piece, std::uint64_t address, std::uint64_t key,
                         std::uint32_t data) = 0;

  /// Makes progress and fills in completions: returns their number, or -errno where the rail itself has failed.
  virtual int read(std::span<Completion> completions) = 0;
  /// Readable where read() may return completions; -1 where the provider has no descriptor.
  [[nodiscard]] virtual int wait_fd() const noexcept = 0;
  /// To be called before waiting on wait_fd(); false where read() must be called instead.
  virtual bool may_wait() = 0;
  /// Ends all operations in flight, without completions; afterwards only deregister() and the destructor are called.
  virtual void stop() noexcept = 0;
  /// Text for an error: the cause, and what to do where that is known.
  [[nodiscard]] virtual std::string describe(const Completion& failed) const = 0;
};

/// Which rails to open.
struct RailRequest {
  std::string provider;              ///< only this one; empty: the best one
  std::vector<std::string> devices;  ///< by name or numeric address, one rail each; empty: the provider's choice
  std::string near;                  ///< where devices are not named: for sockets, only the interface of this name or address
  std::vector<std::string> cards;    ///< where devices are not named: cards to prefer, by the kernel's names
  int share = 0;  ///< where none of these cards exists: this rank takes the share-th of `shares` equal parts of all cards
  int shares = 1;
  /// How many completions may wait on any of these rails: the size of their queues; empty: the fabric's minimum.
  std::function<std::size_t(std::span<const RailTraits>)> operations;
  std::size_t peers = 0;
};

/// Opens rails: libfabric, or a wrapper that injects faults.
class Fabric {
 public:
  Fabric() = default;
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;
  virtual ~Fabric() = default;
  virtual Result<std::vector<std::unique_ptr<Rail>>> open(const RailRequest& request) = 0;
};

}  // namespace shoal::rails
