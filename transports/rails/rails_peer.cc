#include "transports/rails/rails_peer.h"

#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "src/trust/refusals.h"
#include "transports/rails/hub.h"

namespace shoal::rails {
namespace {

constexpr std::uint32_t kMostDamaged = 16;  // a tile that is damaged this often in a row will not arrive intact

// Completions do not prove arrival: with checksums the peer may request a damaged tile again, and one of several rails may be
// silent, which is detected late. With one rail, a silent rail looks like a peer that makes no progress, and there is no
// remedy.
bool confirms_end(const Hub& hub, const LinkShape& shape) noexcept { return hub.uses_checksums() || shape.several_rails(); }

}  // namespace

RailsPeer::RailsPeer(Hub& hub, int rank, const LinkShape& shape)
    : hub_(hub), shape_(shape), received_(shape), sender_({hub, shape, remote, state_, rails_, liveness_, received_}) {
  remote.rank = rank;
}

Status RailsPeer::prepare() {
  if (Status status = sender_.prepare(this); !status.ok()) return status;
  if (!received_.prepare())
    return {StatusCode::system_error, fmt::format("{}: no memory for the link to rank {}", hub_.name(), remote.rank)};
  if (shape_.write_from > 0) {
    if (Status status = hub_.register_memory(received_.slots(), true, false); !status.ok()) return status;
  }
  rails_.prepare(shape_.rails, shape_.window * shape_.parts_per_tile());
  control_.prepare(sender_.control_memory(), shape_.rails, this);
  return {};
}

// Tiles
// -----------------------------------------------------------------------------------------------------------------------

bool RailsPeer::send(const TileHeader& header, std::span<const std::byte> data, bool lend) {
  if (!state_.takes_tiles() || !sender_.take(header, data, lend)) return false;
  if (!pump()) hub_.want_pump(*this);
  return true;
}

bool RailsPeer::pump() {
  RailMask full = 0;
  while (sender_.window().has_queued() && state_.is_open()) {
    const Sender::Post post = sender_.post_next(full);
    if (post.rail < 0) return false;
    const auto rail = static_cast<std::size_t>(post.rail);
    if (post.result == kAgain) {
      full |= mask_of(rail);
    } else if (post.result != 0) {
      lose_rail(rail, hub_.describe(rail, post.result));
    }
  }
  // A control record reports releases only where no tile that was sent since has reported them.
  if ((control_.due() || received_.owes_release()) && !state_.has_failed()) return post_control() != kAgain;
  return true;
}

void RailsPeer::on_part_sent(Part& part, const Completion& completion) {
  const std::size_t rail = part.rail;
  if (completion.error != 0) want_control();  // the releases that its packet reported may not have arrived
  // A part that left on a rail lost since then may have reached an end that the peer had closed.
  const bool is_lost = rails_.is_lost(rail);
  if (!sender_.complete(part, completion.error != 0 || (shape_.several_rails() && is_lost))) return;
  if (completion.error != 0 && !is_lost) lose_rail(rail, hub_.describe(rail, completion));
  hub_.want_pump(*this);
}

bool RailsPeer::on_packet(const Packet& packet, Receive& receive, std::span<const std::byte> payload) {
  if (state_.has_failed()) return false;
  if (sender_.acknowledge(packet, receive.rail)) state_.on_packet();
  switch (packet.kind) {
    case PacketKind::note:
      return false;
    case PacketKind::probe:
      control_.answer_on(receive.rail);
      want_control();
      return false;
    case PacketKind::rail_lost:
      if (packet.position >= shape_.rails) return false;
      rails_.on_lost_by_peer(packet.position);
      sender_.on_slots_removed();
      lose_rail(packet.position, "the peer has lost it");
      return false;
    case PacketKind::close_notice:
      state_.on_close_notice(packet.position);
      begin_end(fmt::format("rank {} closed the connection", remote.rank));
      end_if_all_arrived(false);
      return false;
    case PacketKind::retransmit:
      sender_.resend(packet.position);
      hub_.want_pump(*this);
      return false;
    case PacketKind::data:
    case PacketKind::announce:
      break;
  }
  const Receipt receipt = received_.accept(packet, receive, payload);
  if (receipt.kind == Receipt::Kind::unexpected) {
    const bool announces = packet.kind == PacketKind::announce;
    count_refusal(hub_.name(), announces ? "a tile that is not written was announced" : "a tile that is written was sent");
  }
  on_receipt(receipt);
  return receipt.holds_receive;
}

bool RailsPeer::on_written(const Immediate& immediate, std::size_t rail) {
  if (state_.has_failed()) return true;
  const Receipt receipt = received_.accept_write(immediate, rail);
  on_receipt(receipt);
  return receipt.kind != Receipt::Kind::unexpected;
}

void RailsPeer::on_receipt(const Receipt& receipt) {
  if (receipt.kind == Receipt::Kind::duplicate && shape_.several_rails()) want_control();
  if (receipt.kind < Receipt::Kind::piece) return;
  if (state_.is_ending()) state_.extend(hub_.now());
  if (receipt.kind == Receipt::Kind::damaged) {
    if (receipt.damaged == kMostDamaged) {
      return fail({StatusCode::peer_failed, fmt::format("rank {} sent tile {} with a wrong checksum, {} times in a row",
                                                        remote.rank, receipt.position, receipt.damaged)});
    }
    if (received_.damaged() == 1) {
      fmt::print(stderr,
                 "shoal: {}: a tile from rank {} arrived with a wrong checksum "
                 "and is retransmitted (reported once)\n",
                 hub_.name(), remote.rank);
    }
    control_.request_tile(receipt.position % shape_.window);
    want_control();
  } else if (receipt.kind == Receipt::Kind::tile) {
    if (receipt.is_next) hub_.note_progress();
    if (receipt.report_due) want_control();
    end_if_all_arrived(false);
  }
}

void RailsPeer::release() noexcept {
  if (Receive* const held = received_.release(); held != nullptr) hub_.repost(*held);
  if (received_.owes_release()) hub_.want_pump(*this);
}

// Control records
// -----------------------------------------------------------------------------------------------------------------------

void RailsPeer::want_control() {
  control_.request();
  hub_.want_pump(*this);
}

// A control record waits behind the data in flight on its rail. Rails on which no packet of the peer arrived lately might lose
// it. A rail may refuse everything for minutes, for example while its connection is being made on a path that is cut: then the
// record takes another one, so that no acknowledgement waits for that rail.
int RailsPeer::post_control() {
  control_.request();  // until it has been posted
  const std::size_t latest = liveness_.latest();
  for (RailMask full = 0;;) {
    const ControlQueue::Next next = control_.next();
    const std::size_t wanted = next.rail ? *next.rail : rails_.soonest(latest, liveness_.recent());
    const int chosen = rails_.next_usable(wanted, control_.busy() | full);
    if (chosen < 0) return full == 0 ? 0 : kAgain;  // the completion of another control record lets this one leave
    const auto rail = static_cast<std::size_t>(chosen);
    const int result = sender_.post_control(control_.record(rail), next, rail);
    if (result == kAgain) {
      full |= mask_of(rail);
      // It has shown what it was to show. watch() asks for it again while the wait lasts.
      if (next.kind == PacketKind::probe) control_.drop_probe(*next.rail);
      continue;
    }
    if (result != 0) {
      lose_rail(rail, hub_.describe(rail, result));
      return result;
    }
    control_.posted(rail, next);
    if (control_.due()) hub_.want_pump(*this);
    end_if_all_arrived(true);
    return 0;
  }
}

void RailsPeer::on_control_sent(ControlRecord& record, const Completion& completion) {
  record.in_flight = false;
  liveness_.on_control_ended(record.rail);
  if (completion.error != 0) {
    control_.take_back(record);
    lose_rail(record.rail, hub_.describe(record.rail, completion));
  }
  if (control_.due()) hub_.want_pump(*this);
}

// Rails that are lost
// -----------------------------------------------------------------------------------------------------------------------

void RailsPeer::lose_rail(std::size_t rail, const std::string& why) {
  if (rails_.is_lost(rail)) return;
  rails_.lose(rail);
  control_.report_lost(rail);
  hub_.deregister_on(received_.slots(), rail);
  if (rails_.usable() == 0) return begin_end(fmt::format("rank {} cannot be reached: {}", remote.rank, why));
  if (!state_.is_open()) return;
  if (state_.is_leaving()) {
    control_.send_close_notice();  // it may have left on that rail
  } else {
    const Rail* lost = hub_.rail(rail);
    fmt::print(stderr,
               "shoal: {}: rank {} cannot be reached by rail {} ({}): {}; "
               "continuing without it\n",
               hub_.name(), remote.rank, rail, lost == nullptr ? "closed" : lost->traits().device, why);
  }
  sender_.resend_from(rail);
  want_control();
}

void RailsPeer::on_rail_closed(std::size_t rail, const std::string& why) {
  if (control_.record(rail).in_flight) control_.take_back(control_.record(rail));
  liveness_.on_control_ended(rail);
  sender_.on_rail_closed(rail);
  if (rails_.is_lost(rail)) {
    sender_.resend_from(rail);
    want_control();
  } else {
    lose_rail(rail, why);
  }
  sender_.count_sent();
}

bool RailsPeer::watch(Clock::time_point now) {
  if (state_.has_failed()) return false;
  if (state_.is_ending()) {
    // A peer that has sent its close notice may still have to detect a silent rail, and retransmit what was lost there.
    const bool repairs = shape_.several_rails() && state_.may_repair(received_.arrived()) && rails_.usable() != 0;
    if (state_.is_overdue(now, repairs)) fail(state_.end_status());
    return true;
  }
  if (!shape_.several_rails()) return false;
  rails_.forget_rates_of_idle(now);
  const RailLiveness::Verdict verdict = liveness_.check(now, rails_);
  control_.probe(verdict.probe);
  if (verdict.overdue) want_control();
  if (verdict.silent) {
    hub_.close_rail(*verdict.silent, fmt::format("nothing sent to rank {} on it has arrived for {} ms, "
                                                 "although the peer answers on another rail",
                                                 remote.rank, verdict.silence.count()));
  }
  return verdict.waits;
}

// The end
// -----------------------------------------------------------------------------------------------------------------------

void RailsPeer::begin_end(std::string why) {
  if (!state_.begin_end(std::move(why), hub_.now())) return;
  hub_.request_watch();
  sender_.drop_queue();
}

void RailsPeer::on_process_ended(const std::string& why) {
  state_.on_process_ended();
  begin_end(fmt::format("rank {} ended: {}", remote.rank, why));
}

// The peer has left. It may wait for the acknowledgement that no tile is requested again.
void RailsPeer::end_if_all_arrived(bool peer_knows) {
  if (!state_.has_all(received_.arrived())) return;
  if (peer_knows || !confirms_end(hub_, shape_)) {
    fail(state_.end_status());
  } else {
    want_control();
  }
}

void RailsPeer::fail(Status status) {
  if (!state_.fail(std::move(status))) return;
  sender_.drop_queue();
  hub_.note_progress();
}

void RailsPeer::leave() {
  if (!state_.leave()) return;
  // Where tiles are not acknowledged yet, asks the peer to answer on every rail: a silent rail may swallow the close notice.
  if (shape_.several_rails() && !sender_.window().all_arrived()) control_.probe(rails_.usable());
  control_.send_close_notice();
  want_control();
}

RailsPeer::Flush RailsPeer::flush_state() const noexcept {
  const SendWindow& window = sender_.window();
  const bool confirms = confirms_end(hub_, shape_);
  if (!state_.is_open()) {
    // A peer that leaves may wait for this rank's control record.
    const bool owes_control = control_.in_flight() || (control_.due() && !state_.has_failed());
    return confirms && state_.peer_has_left() && owes_control && rails_.usable() != 0 ? Flush::waiting : Flush::done;
  }
  const bool unacknowledged = confirms && !window.all_arrived();
  if (window.is_idle() && !unacknowledged && control_.close_notice_sent() && !control_.in_flight()) return Flush::done;
  return shape_.several_rails() && state_.peer_answered() && unacknowledged ? Flush::repairing : Flush::waiting;
}

}  // namespace shoal::rails
