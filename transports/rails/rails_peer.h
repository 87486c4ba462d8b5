// RailsPeer: both directions to one peer, over all rails: order, flow control, acknowledgements, and lost rails.
#pragma once

#include <array>
#include <bitset>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <shoal/status.h>

#include "transports/rails/posted.h"
#include "transports/rails/rail_load.h"
#include "transports/rails/rails.h"
#include "transports/rails/registrations.h"
#include "transports/rails/wire.h"
#include "transports/transport.h"

namespace shoal::rails {

inline constexpr std::size_t kLine = 64;  ///< bytes of a cache line; records and payloads start on one
constexpr std::size_t round_up(std::size_t bytes) noexcept { return (bytes + kLine - 1) / kLine * kLine; }

class Hub;
using Clock = std::chrono::steady_clock;

/// Grace period at shutdown in which tiles lost on a failed rail are retransmitted. Longer than the time to detect a silent
/// rail.
inline constexpr std::chrono::milliseconds kRepairTime{2500};

/// Sizes that both ends of a link agree on.
struct LinkShape {
  std::size_t tile_bytes = 0;
  std::size_t window = 0;       ///< tiles in flight in one direction
  std::size_t piece_bytes = 0;  ///< largest payload of a message; a multiple of 64
  std::size_t stripe_bytes = 0;
  std::size_t write_from = 0;  ///< larger tiles are written into the peer's slots; 0 = none
  std::size_t max_write_bytes = 0;
  std::size_t rails = 1;
  /// Number of pieces of a tile of `bytes` bytes that `alive` rails carry.
  [[nodiscard]] std::size_t pieces(std::size_t bytes, std::size_t alive) const noexcept;
  /// The most messages, without announcements, of a tile that is sent.
  [[nodiscard]] std::size_t max_sent_pieces() const noexcept;
  [[nodiscard]] std::size_t max_pieces() const noexcept;
  /// Number of receives that one peer can consume on that rail.
  [[nodiscard]] std::size_t receives(const RailTraits& rail) const noexcept;
  /// The highest number of completions of one peer, in both directions, that can wait on that rail.
  [[nodiscard]] std::size_t completions(const RailTraits& rail) const noexcept;
  [[nodiscard]] bool is_written(std::size_t bytes) const noexcept { return write_from > 0 && bytes > write_from; }
};

/// The shape of all links over these rails; piece_bytes is too small for a record where the rails' messages are too small.
[[nodiscard]] LinkShape shape_of(const Options& options, std::span<const RailTraits> rails) noexcept;

/// Parts that wait for room on a rail; each part is in it at most once, so it never grows.
class PartQueue {
 public:
  void make_room(std::size_t parts) { ring_.resize(parts + 1); }
  [[nodiscard]] bool empty() const noexcept { return head_ == tail_; }
  [[nodiscard]] Part& front() const noexcept { return *ring_[head_]; }
  void push(Part& part) noexcept {
    part.queued = true;
    ring_[tail_] = &part;
    tail_ = (tail_ + 1) % ring_.size();
  }
  void pop() noexcept {
    ring_[head_]->queued = false;
    head_ = (head_ + 1) % ring_.size();
  }

 private:
  std::vector<Part*> ring_;
  std::size_t head_ = 0;
  std::size_t tail_ = 0;
};

/// Owned by the Hub, which outlives the operations. Thread rule: that of the transport.
class RailsPeer {
 public:
  RailsPeer(Hub& hub, int peer, std::uint16_t index, const LinkShape& shape);
  RailsPeer(const RailsPeer&) = delete;
  RailsPeer& operator=(const RailsPeer&) = delete;

  /// Allocates and registers the memory. Errors: system_error.
  Status prepare();
  /// Ends the registrations.
  void deregister() noexcept;
  [[nodiscard]] Memory& outbox() noexcept { return outbox_; }
  [[nodiscard]] Memory& slots() noexcept { return slots_; }

  // Interface of Link -------------------------------------------------------------------------------------------------------
  [[nodiscard]] int rank() const noexcept { return peer_; }
  [[nodiscard]] const LinkShape& shape() const noexcept { return shape_; }
  bool try_send(const TileHeader& header, std::span<const std::byte> data) { return take(header, data, false); }
  bool try_lend(const TileHeader& header, std::span<const std::byte> data) { return take(header, data, true); }
  [[nodiscard]] std::uint64_t sent() const noexcept { return sent_; }
  void keep_copies();
  [[nodiscard]] const Arrival* peek() noexcept;
  void release() noexcept;
  [[nodiscard]] const Status& status() const noexcept { return status_; }
  /// The caller has destroyed the link: sends the close notice.
  void leave();

  // Events from the Hub -----------------------------------------------------------------------------------------------------
  /// A message of this link; true where the receive is held until the tile is released.
  bool on_packet(const Packet& packet, Receive& receive, std::span<const std::byte> payload);
  /// False where no one-sided write to the tile that the mark names is expected.
  [[nodiscard]] bool on_written(const Immediate& immediate, std::size_t rail);
  void on_sent(Part& part, const Completion& completion);
  void on_word_sent(ShortMessage& word, const Completion& completion);
  /// The rail is closed: its operations in flight have ended.
  void on_rail_closed(std::size_t rail, const std::string& why);
  /// The peer's process has ended. Data that it had sent still arrives.
  void on_process_ended(const std::string& why);
  /// Checks timeouts; true where it must be called again soon.
  bool watch(Clock::time_point now);
  /// Sends what can be sent; false where something is left because a queue was full.
  bool pump();
  void fail(Status status);

  [[nodiscard]] bool has_news() const noexcept { return arrived_ > released_ && shown_ <= released_; }
  /// All data and the close notice have left, and have been acknowledged where confirms_end().
  [[nodiscard]] bool is_quiet() const noexcept;
  /// This rank leaves; the peer answers, but has not acknowledged all tiles yet.
  [[nodiscard]] bool is_repairing() const noexcept;
  [[nodiscard]] bool is_over() const noexcept { return !status_.ok(); }
  [[nodiscard]] std::size_t memory_bytes() const noexcept { return outbox_.size() + slots_.size() + checked_.size(); }

  // State of the handshake
  // -----------------------------------------------------------------------
  struct Handshake {
    Nonce nonce{};
    std::optional<Nonce> peer_nonce;
    bool peer_answered = false;  ///< the peer has answered
    bool owes_answer = false;    ///< the peer waits for an answer
    bool answer_sent = false;    ///< this rank's answer has left
    int tries = 0;
    Clock::time_point next_hello{};
    ShortMessage hello;
    ShortMessage answer;
    std::string last_error;
    [[nodiscard]] bool done() const noexcept { return peer_answered && answer_sent; }
    [[nodiscard]] bool proven() const noexcept { return peer_nonce.has_value(); }  ///< the peer is authenticated
  };
  Handshake handshake;
  std::uint16_t index = 0;       ///< number of this link at this end
  std::uint16_t peer_index = 0;  ///< number of this link at the peer
  PacketKey key_out;
  PacketKey key_in;
  std::vector<std::uint64_t> addresses;               ///< of the peer, by rail
  std::array<Record::Slots, kMaxRails> peer_slots{};  ///< where to write, by rail
  std::size_t peer_write_from = 0;
  int pidfd = -1;
  bool on_this_host = false;  ///< on this host, as far as is known
  bool queued_for_pump = false;
  [[nodiscard]] Record::Slots own_slots(std::size_t rail) const noexcept;

 private:
  struct Outgoing {
    TileHeader tile;
    std::uint64_t position = 0;
    std::uint32_t pieces = 1;
    std::uint32_t unfinished = 0;  ///< parts that are queued or in flight
    bool by_write = false;
    bool has_checksum = false;
    std::uint32_t checksum = 0;
    bool arrived = true;
    const std::byte* lent = nullptr;  ///< the payload in the caller's memory; null: it is in the outbox
    bool may_redirect = false;        ///< the rail can redirect the lent payload to a copy
    std::array<RegistrationCache::Entry*, kMaxRails> entries{};
  };
  struct Incoming {
    TileHeader tile;
    bool announced = false;
    bool complete = false;
    bool has_checksum = false;
    std::uint32_t checksum = 0;
    std::uint32_t wrong = 0;  ///< number of wrong checksums in a row
    std::uint32_t pieces = 0;
    std::uint32_t got = 0;
    std::bitset<kMaxPieces> have;
    Receive* held = nullptr;
    std::span<const std::byte> data;
  };
  struct RailState {
    bool lost = false;
    RailLoad load;                    ///< bytes that are not acknowledged
    std::uint32_t in_flight = 0;      ///< operations that have not completed
    Clock::time_point waits_since{};  ///< start of the wait for the next arrival or completion
    Clock::time_point heard{};
  };

  struct Word : ShortMessage {
    PacketKind kind = PacketKind::note;
    std::uint64_t position = 0;
    Clock::time_point since{};
  };

  [[nodiscard]] bool several_rails() const noexcept { return shape_.rails > 1; }
  [[nodiscard]] std::uint32_t pieces_of(std::size_t bytes) const noexcept;
  Part& part_of(std::size_t slot, std::size_t i) noexcept { return parts_[slot * parts_per_slot_ + i]; }
  std::byte* payload_of(std::size_t slot) const noexcept;
  std::byte* header_of(std::size_t slot, std::size_t i) const noexcept { return payload_of(slot) - (i + 1) * kPacketBytes; }
  std::byte* slot_memory(std::size_t slot) const noexcept { return slots_.data() + slot * slot_stride_; }
  bool take(const TileHeader& header, std::span<const std::byte> data, bool lend);
  [[nodiscard]] bool may_lend_any() const noexcept;
  bool register_lent(Outgoing& out, std::span<const std::byte> data);
  void unregister_lent(Outgoing& out);
  void leave_lent(std::size_t slot);
  [[nodiscard]] bool is_read(const Part& part) const noexcept;
  int choose_rail(std::size_t bytes, std::uint32_t refused) const noexcept;
  [[nodiscard]] double best_speed() const noexcept;
  int post(Part& part, std::size_t rail);
  int post_word();
  /// The peer may soon wait for room that has been released already, but not reported.
  [[nodiscard]] bool owes_release() const noexcept {
    return released_ - told_released_ >= std::max<std::size_t>(1, shape_.window / 4);
  }
  [[nodiscard]] std::size_t soonest_word_rail() const noexcept;
  int choose_word_rail(std::size_t wanted) const noexcept;
  void take_back_word(Word& word);
  [[nodiscard]] bool word_under_way() const noexcept;
  Packet front(PacketKind kind) noexcept;
  std::span<const std::byte> write_front(std::byte* at, const Packet& packet) noexcept;
  void count_sent();
  void queue(Part& part);
  void finish_part(Part& part);
  void drop_queue();
  void take_acknowledgements(const Packet& packet, std::size_t rail);
  template <typename Each>
  void for_each_part(std::uint64_t position, Each each);
  void resend_from(std::size_t rail);
  void send_again(std::uint64_t position);
  void lose_rail(std::size_t rail, const std::string& why);
  [[nodiscard]] bool any_rail_left() const noexcept;
  Incoming* incoming_for(std::uint64_t position) noexcept;
  void finish_incoming(Incoming& incoming, std::uint64_t position);
  [[nodiscard]] bool is_sound(Incoming& incoming, std::size_t slot);
  void ask_again(Incoming& incoming, std::uint64_t position);
  void end_if_all_came(bool peer_knows);
  [[nodiscard]] bool confirms_end() const noexcept;
  void want_word();
  void forget(Incoming& incoming) noexcept;
  void begin_end(std::string why);

  Hub& hub_;
  const int peer_;
  const LinkShape shape_;
  Status status_;
  std::string ending_;  ///< the reason; not empty: nothing more is sent, and the link fails when nothing more arrives
  Clock::time_point ending_since_{};
  std::optional<std::uint64_t> goodbye_at_;  ///< the peer has left after this many tiles
  bool process_ended_ = false;

  // Outgoing
  std::size_t parts_per_slot_ = 0;
  std::size_t out_stride_ = 0;
  Memory outbox_;
  std::vector<Outgoing> out_;
  std::vector<Part> parts_;
  PartQueue queue_;
  std::uint64_t taken_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t peer_released_ = 0;
  std::uint64_t peer_arrived_ = 0;
  bool refused_ = false;
  std::array<RailState, kMaxRails> rails_{};
  std::size_t last_rail_ = 0;  ///< on which the latest packet of the peer arrived

  // Control records
  std::array<Word, kMaxRails> words_;  // one for each rail, so that a silent rail holds up only its own
  bool word_due_ = false;
  bool leaving_ = false;
  bool answered_leaving_ = false;  ///< a packet of the peer has arrived since
  bool said_goodbye_ = false;
  std::uint32_t rails_lost_ = 0;       ///< bits: lost at this end
  std::uint32_t peer_rails_lost_ = 0;  ///< bits: lost at the peer, which has removed its slots from them
  std::uint32_t rails_to_tell_ = 0;    ///< bits: lost at this end, not reported to the peer yet
  std::uint32_t rails_to_ask_ = 0;
  std::optional<std::size_t> answer_on_;
  std::uint64_t slots_to_ask_ = 0;  ///< bits: slots of damaged tiles, not reported to the peer yet

  // Incoming
  Memory slots_;
  Memory checked_;  // copies of written tiles with checksums: by slot
  std::size_t slot_stride_ = 0;
  std::vector<Incoming> in_;
  std::array<std::uint32_t, kMaxRails> come_{};  ///< by rail: pieces and announcements that have arrived
  std::uint64_t released_ = 0;
  std::uint64_t arrived_ = 0;
  std::uint64_t shown_ = 0;
  std::uint64_t told_released_ = 0;
  std::uint64_t told_arrived_ = 0;
  bool said_damage_ = false;
  Arrival arrival_;
};

}  // namespace shoal::rails
