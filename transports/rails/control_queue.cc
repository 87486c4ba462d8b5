#include "transports/rails/control_queue.h"

#include <algorithm>
#include <bit>

#include "transports/rails/link_shape.h"

namespace shoal::rails {

void ControlQueue::prepare(std::byte* memory, std::size_t rails, RailsPeer* owner) {
  for (std::size_t r = 0; r < rails; ++r) {
    records_[r].role = Posted::Role::control;
    records_[r].peer = owner;
    records_[r].memory = memory + r * round_up(kPacketBytes);
    records_[r].bytes = kPacketBytes;
  }
}

ControlQueue::Next ControlQueue::next() const noexcept {
  const auto lowest = [](auto bits) { return static_cast<std::size_t>(std::countr_zero(bits)); };
  if (lost_rails_ != 0) return {PacketKind::rail_lost, lowest(lost_rails_), answer_on_};
  if (damaged_slots_ != 0) return {PacketKind::retransmit, lowest(damaged_slots_), answer_on_};
  if (probes_ != 0) return {PacketKind::probe, 0, lowest(probes_)};
  if (close_ == Close::due) return {PacketKind::close_notice, 0, answer_on_};
  return {PacketKind::note, 0, answer_on_};
}

void ControlQueue::posted(std::size_t rail, const Next& next) noexcept {
  ControlRecord& record = records_[rail];
  record.rail = static_cast<std::uint8_t>(rail);
  record.in_flight = true;
  record.kind = next.kind;
  record.number = next.number;
  answer_on_.reset();
  if (next.kind == PacketKind::rail_lost) lost_rails_ &= ~mask_of(next.number);
  if (next.kind == PacketKind::retransmit) damaged_slots_ &= ~(std::uint64_t{1} << next.number);
  if (next.kind == PacketKind::probe) drop_probe(*next.rail);
  if (next.kind == PacketKind::close_notice) close_ = Close::sent;
  due_ = lost_rails_ != 0 || damaged_slots_ != 0 || probes_ != 0 || close_ == Close::due;
}

void ControlQueue::take_back(ControlRecord& record) noexcept {
  record.in_flight = false;
  if (record.kind == PacketKind::rail_lost) report_lost(record.number);
  if (record.kind == PacketKind::retransmit) request_tile(record.number);
  if (record.kind == PacketKind::close_notice) send_close_notice();
  request();
}

RailMask ControlQueue::busy() const noexcept {
  RailMask busy = 0;
  for (std::size_t r = 0; r < records_.size(); ++r) busy |= records_[r].in_flight ? mask_of(r) : 0;
  return busy;
}

bool ControlQueue::in_flight() const noexcept {
  return std::any_of(records_.begin(), records_.end(),
                     [](const ControlRecord& record) { return record.in_flight && record.kind != PacketKind::probe; });
}

}  // namespace shoal::rails
