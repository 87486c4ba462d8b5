// The control records that a link over rails has to send.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "transports/rails/posted.h"
#include "transports/rails/rail_selector.h"
#include "transports/rails/wire.h"

namespace shoal::rails {

/// A packet without payload. Every packet acknowledges, so a control record that has not left needs no copy: take_back()
/// makes another one carry its contents.
struct ControlRecord : ShortMessage {
  PacketKind kind = PacketKind::note;
  std::size_t number = 0;  ///< of the rail (rail_lost) or of the slot (retransmit)
};

/// Decides which control record leaves next. One may be in flight on each rail, so that a silent rail holds up only its own.
/// Thread rule: that of the transport.
class ControlQueue {
 public:
  /// What to send next.
  struct Next {
    PacketKind kind = PacketKind::note;
    std::size_t number = 0;
    std::optional<std::size_t> rail;  ///< by which rail; empty: any
  };

  /// `memory`: from there on each rail's record has round_up(kPacketBytes) bytes. Completions name `owner`.
  void prepare(std::byte* memory, std::size_t rails, RailsPeer* owner);

  /// A control record is to leave, if only for its acknowledgements. The functions below do not imply this.
  void request() noexcept { due_ = true; }
  [[nodiscard]] bool due() const noexcept { return due_; }
  void answer_on(std::size_t rail) noexcept { answer_on_ = rail; }
  void report_lost(std::size_t rail) noexcept { lost_rails_ |= mask_of(rail); }
  void request_tile(std::size_t slot) noexcept { damaged_slots_ |= std::uint64_t{1} << slot; }
  void probe(RailMask rails) noexcept { probes_ |= rails; }
  void drop_probe(std::size_t rail) noexcept { probes_ &= ~mask_of(rail); }
  /// The close notice is to leave, once more where it has left already.
  void send_close_notice() noexcept { close_ = Close::due; }
  [[nodiscard]] bool close_notice_sent() const noexcept { return close_ == Close::sent; }

  [[nodiscard]] Next next() const noexcept;
  [[nodiscard]] ControlRecord& record(std::size_t rail) noexcept { return records_[rail]; }
  /// The record of that rail was posted with the contents of `next`.
  void posted(std::size_t rail, const Next& next) noexcept;
  void take_back(ControlRecord& record) noexcept;

  /// The rails on which a record is in flight.
  [[nodiscard]] RailMask busy() const noexcept;
  /// A record is in flight that is more than a probe.
  [[nodiscard]] bool in_flight() const noexcept;

 private:
  enum class Close : std::uint8_t { none, due, sent };

  std::array<ControlRecord, kMaxRails> records_;  // by rail
  bool due_ = false;
  Close close_ = Close::none;
  RailMask lost_rails_ = 0;  // lost at this end, not reported to the peer yet
  RailMask probes_ = 0;
  std::uint64_t damaged_slots_ = 0;  // bits: slots whose tiles are to be retransmitted
  std::optional<std::size_t> answer_on_;
};

}  // namespace shoal::rails
