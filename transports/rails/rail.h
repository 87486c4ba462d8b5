// Rail: one endpoint on one network device. The narrow interface between the ofi transport and libfabric, where tests put
// faults.
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

/// Something that was posted and is not completed. The provider may use these bytes until then (FI_CONTEXT, FI_CONTEXT2).
struct Operation {
  void* provider[8] = {};
};

/// What a rail says about an operation. Completions come in any order: neither that of posting nor that of the wire.
struct Completion {
  enum class Kind : std::uint8_t {
    sent,      ///< a send or a write of ours is over: its memory is free
    received,  ///< a message lies in the memory of this receive
    written,   ///< a peer has written into our memory, and all bytes of that write are there
  };
  Kind kind = Kind::sent;
  Operation* operation = nullptr;  ///< of `written` only where the rail takes receives for them
  std::size_t bytes = 0;           ///< of a message
  std::uint32_t data = 0;          ///< that came with a write
  int error = 0;                   ///< an errno value; 0 = it went well
  int provider_error = 0;          ///< what the provider adds to it
};

/// Memory that a rail knows. A plain value; Rail::dismiss() ends it.
struct Registration {
  void* handle = nullptr;
  void* descriptor = nullptr;  ///< for local use
  std::uint64_t key = 0;       ///< for peers
  std::uint64_t base = 0;      ///< what peers call its first byte
};

/// Bytes to send, and the descriptor of the memory that they lie in where the rail needs one.
struct Piece {
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  void* descriptor = nullptr;
  bool may_move = false;  ///< Rail::redirect() may follow
};

/// What the provider grants.
struct RailTraits {
  std::string provider;               ///< "tcp;ofi_rxm"
  std::string device;                 ///< "eth0"
  std::size_t max_message_bytes = 0;  ///< of a send
  std::size_t max_write_bytes = 0;    ///< 0: no one-sided writes that carry 32 bits
  bool emulated_writes = false;       ///< writes are the provider's own messages and copies: ours are better
  std::size_t receives = 0;           ///< that may be posted
  bool local_registration = false;    ///< memory must be registered before it is sent from or received into
  bool writes_take_receives = false;  ///< each write takes a posted receive of its target
  /// Peers on this host may read what is sent to them by themselves, even when this end has been closed: nothing is lent to
  /// them.
  bool neighbours_read = false;
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
  /// Opaque bytes by which peers find this end.
  [[nodiscard]] virtual std::string address() const = 0;
  /// The number by which this end calls the peer with that address.
  virtual Result<std::uint64_t> add_peer(std::string_view address) = 0;

  /// Memory for sends and receives; with `for_peers`, also for their writes.
  virtual Result<Registration> enroll(std::span<std::byte> memory, bool for_peers) = 0;
  /// Afterwards no peer reaches that memory any more.
  virtual void dismiss(Registration& registration) noexcept = 0;

  virtual int post_receive(Operation& operation, std::span<std::byte> memory, void* descriptor) = 0;
  /// At most two pieces, which leave as one message.
  virtual int post_send(Operation& operation, std::uint64_t peer, std::span<const Piece> pieces) = 0;
  /// Whether pieces for that peer may move: the rail takes them by itself, during calls of this interface; no card reads them.
  [[nodiscard]] virtual bool redirects(std::uint64_t peer) const noexcept {
    static_cast<void>(peer);
    return false;
  }
  /// The second piece of a send that has been posted, which may move, lies elsewhere from now on, the same bytes. Only where
  /// redirects().
  virtual void redirect(Operation& operation, const std::byte* data) noexcept {
    static_cast<void>(operation), static_cast<void>(data);
  }
  /// `data` arrives when all the bytes have.
  virtual int post_write(Operation& operation, std::uint64_t peer, const Piece& piece, std::uint64_t address, std::uint64_t key,
                         std::uint32_t data) = 0;

  /// Moves what can be moved, and fills in what is over; how many, or -errno where the rail itself is broken.
  virtual int read(std::span<Completion> completions) = 0;
  /// Readable where read() may find something; -1 where the provider has no such thing.
  [[nodiscard]] virtual int wait_fd() const noexcept = 0;
  /// To be called before waiting on wait_fd(); false where read() must be called instead.
  virtual bool may_wait() = 0;
  /// Ends all that is under way, without completions; afterwards only dismiss() and the destructor are called.
  virtual void stop() noexcept = 0;
  /// In words: what went wrong, and what to do where that is known.
  [[nodiscard]] virtual std::string describe(const Completion& failed) const = 0;
};

/// Which rails to open.
struct RailRequest {
  std::string provider;              ///< only this one; empty: the best that there is
  std::vector<std::string> devices;  ///< by name or numeric address, one rail each; empty: the provider's choice
  std::string near;                  ///< where devices are not named: of sockets, the one of this name or address and no other
  std::vector<std::string> cards;    ///< where devices are not named: cards to prefer, by the names that the kernel gives them
  int share = 0;  ///< of cards, where none is preferred, this rank takes the share-th of `shares` equal parts
  int shares = 1;
  /// How many completions may wait on any of these rails, for the size of their queues; empty: as few as the fabric likes.
  std::function<std::size_t(std::span<const RailTraits>)> operations;
  std::size_t peers = 0;
};

/// What opens rails: libfabric, or that with faults.
class Fabric {
 public:
  Fabric() = default;
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;
  virtual ~Fabric() = default;
  virtual Result<std::vector<std::unique_ptr<Rail>>> open(const RailRequest& request) = 0;
};

}  // namespace shoal::rails
