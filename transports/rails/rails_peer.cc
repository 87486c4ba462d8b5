#include "transports/rails/rails_peer.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "transports/rails/hub.h"

namespace shoal::rails {
namespace {

using std::chrono::milliseconds;

// A link that ends waits this long for data that is still in flight.
constexpr milliseconds kEndingPatience{300};
// A sender probes a rail when nothing that it carries has arrived for kAskAfter. It closes the rail after kLostAfter where a
// packet of the peer has arrived on another rail meanwhile.
constexpr milliseconds kAskAfter{500};
constexpr milliseconds kLostAfter{1500};
// Pieces of a tile for each rail: more than one, so that a faster rail can take more of them.
constexpr std::size_t kStripesPerRail = 2;
constexpr std::size_t kSpareReceives = 4;    // for each link, beyond its tiles: control records, and duplicates
constexpr std::size_t kWordsAndRecords = 3;  // of a link, in flight on a rail: one control record, hello and answer

constexpr std::size_t parts_for(std::size_t bytes, std::size_t each) noexcept { return (bytes + each - 1) / each; }

}  // namespace

std::size_t LinkShape::pieces(std::size_t bytes, std::size_t alive) const noexcept {
  const std::size_t least = std::max<std::size_t>(1, parts_for(bytes, is_written(bytes) ? max_write_bytes : piece_bytes));
  if (rails == 1 || bytes <= stripe_bytes) return least;
  return std::max(least, std::min({kStripesPerRail * alive, 2 * bytes / stripe_bytes, kMaxPieces}));
}

std::size_t LinkShape::max_sent_pieces() const noexcept { return pieces(write_from > 0 ? write_from : tile_bytes, rails); }

std::size_t LinkShape::max_pieces() const noexcept { return std::max(max_sent_pieces(), pieces(tile_bytes, rails)); }

std::size_t LinkShape::receives(const RailTraits& rail) const noexcept {
  const std::size_t messages = window * (max_sent_pieces() + (write_from > 0 ? 1 : 0)) + kSpareReceives;
  return messages + (rail.writes_take_receives ? window * max_pieces() : 0);
}

// Each piece of each tile, and the tile's announcement, may be in flight on the same rail, once.
std::size_t LinkShape::completions(const RailTraits& rail) const noexcept {
  const std::size_t written_here = write_from > 0 && !rail.writes_take_receives ? window * max_pieces() : 0;
  return receives(rail) + written_here + window * (max_pieces() + 1) + kWordsAndRecords;
}

LinkShape shape_of(const Options& options, std::span<const RailTraits> rails) noexcept {
  LinkShape shape;
  shape.tile_bytes = options.tile_bytes;
  // Each rail has a bandwidth-delay product of its own.
  shape.window = std::min(kMaxWindow, options.tiles_per_peer * rails.size());
  shape.stripe_bytes = options.stripe_bytes;
  shape.rails = rails.size();
  std::size_t message = ~std::size_t{0};
  std::size_t write = ~std::size_t{0};
  for (const RailTraits& rail : rails) {
    message = std::min(message, rail.max_message_bytes);
    write = std::min(write, rail.emulated_writes ? 0 : rail.max_write_bytes);
  }
  const bool writes = write >= 4096 && options.write_from_bytes > 0 && options.write_from_bytes < options.tile_bytes &&
                      static_cast<std::size_t>(options.size) <= kMaxImmediateLinks;
  shape.write_from = writes ? options.write_from_bytes : 0;
  shape.max_write_bytes = std::min(write, round_up(shape.tile_bytes)) / kLine * kLine;
  const std::size_t largest = round_up(std::max(kRecordBytes, writes ? shape.write_from : shape.tile_bytes));
  shape.piece_bytes = message < kPacketBytes ? 0 : std::min(largest, (message - kPacketBytes) / kLine * kLine);
  return shape;
}

RailsPeer::RailsPeer(Hub& hub, int peer, std::uint16_t own_index, const LinkShape& shape)
    : index(own_index), hub_(hub), peer_(peer), shape_(shape) {}

Status RailsPeer::prepare() {
  const std::size_t pieces = shape_.max_pieces();
  parts_per_slot_ = pieces + 1;  // the last part is the announcement
  out_stride_ = round_up(parts_per_slot_ * kPacketBytes) + round_up(shape_.tile_bytes);
  slot_stride_ = round_up(shape_.tile_bytes);
  outbox_ = Memory(shape_.window * out_stride_ + shape_.rails * round_up(kPacketBytes));
  const bool writes = shape_.write_from > 0;
  if (pieces > 1 || writes) slots_ = Memory(shape_.window * slot_stride_);
  if (writes) checked_ = Memory(shape_.window * slot_stride_);  // its pages are allocated when there are checksums
  const bool has_slots = slots_.data() != nullptr || (pieces == 1 && !writes);
  if (outbox_.data() == nullptr || !has_slots || (writes && checked_.data() == nullptr))
    return {StatusCode::system_error, fmt::format("{}: no memory for the link to rank {}", hub_.name(), peer_)};
  if (Status status = hub_.register_memory(outbox_, false, true); !status.ok()) return status;
  if (writes) {
    if (Status status = hub_.register_memory(slots_, true, false); !status.ok()) return status;
  }
  out_.resize(shape_.window);
  in_.resize(shape_.window);
  parts_ = std::vector<Part>(shape_.window * parts_per_slot_);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    parts_[i].peer = this;
    parts_[i].slot = static_cast<std::uint32_t>(i / parts_per_slot_);
    parts_[i].piece = static_cast<std::uint32_t>(i % parts_per_slot_);
    parts_[i].announces = i % parts_per_slot_ == pieces;
  }
  queue_.make_room(parts_.size());
  for (std::size_t r = 0; several_rails() && r < shape_.rails; ++r) rails_[r].load.make_room(parts_.size());
  for (std::size_t r = 0; r < shape_.rails; ++r) {
    words_[r].role = Posted::Role::control;
    words_[r].peer = this;
    words_[r].memory = outbox_.data() + shape_.window * out_stride_ + r * round_up(kPacketBytes);
    words_[r].bytes = kPacketBytes;
  }
  return {};
}

void RailsPeer::deregister() noexcept {
  hub_.deregister(outbox_);
  hub_.deregister(slots_);
}

Record::Slots RailsPeer::own_slots(std::size_t rail) const noexcept {
  if (rail >= slots_.registrations.size()) return {};
  return {slots_.registrations[rail].base, slots_.registrations[rail].key};
}

std::byte* RailsPeer::payload_of(std::size_t slot) const noexcept {
  return outbox_.data() + slot * out_stride_ + round_up(parts_per_slot_ * kPacketBytes);
}

// The end
// -----------------------------------------------------------------------------------------------------------------------

bool RailsPeer::any_rail_left() const noexcept {
  for (std::size_t r = 0; r < shape_.rails; ++r) {
    if (!rails_[r].lost && hub_.rail(r) != nullptr) return true;
  }
  return false;
}

// Calls `each` for the pieces of the tile and, where they are written, for the announcement.
template <typename Each>
void RailsPeer::for_each_part(std::uint64_t position, Each each) {
  const std::size_t slot = position % shape_.window;
  for (std::uint32_t i = 0; i < out_[slot].pieces; ++i) each(part_of(slot, i));
  if (out_[slot].by_write) each(part_of(slot, parts_per_slot_ - 1));
}

// Retransmits on other rails the parts that left on that rail and are not known to have arrived.
void RailsPeer::resend_from(std::size_t rail) {
  for (std::uint64_t p = peer_released_; p < taken_; ++p) {
    if (out_[p % shape_.window].arrived) continue;
    for_each_part(p, [&](Part& part) {
      if (part.rail == rail && !part.queued && !part.in_flight) queue(part);
    });
  }
  if (!queue_.empty()) hub_.want_pump(*this);
}

// Retransmits a tile that arrived with a wrong checksum. Its parts in flight have arrived, too, and are sent again when they
// have completed.
void RailsPeer::send_again(std::uint64_t position) {
  if (position < peer_released_ || position >= taken_ || out_[position % shape_.window].arrived) return;  // a repeated request
  for_each_part(position, [&](Part& part) {
    if (part.in_flight) {
      part.again = true;
    } else if (!part.queued) {
      queue(part);
    }
  });
  hub_.want_pump(*this);
}

void RailsPeer::lose_rail(std::size_t rail, const std::string& why) {
  if (rails_[rail].lost) return;
  rails_[rail].lost = true;
  rails_[rail].load.drop();
  rails_lost_ |= 1U << rail;
  rails_to_tell_ |= 1U << rail;
  hub_.deregister_on(slots_, rail);
  if (!any_rail_left()) {
    begin_end(fmt::format("rank {} cannot be reached: {}", peer_, why));
    return;
  }
  if (!status_.ok() || !ending_.empty()) return;
  if (leaving_) {
    said_goodbye_ = false;  // the close notice may have left on that rail
  } else {
    const Rail* lost = hub_.rail(rail);
    fmt::print(stderr, "shoal: {}: rank {} cannot be reached by rail {} ({}): {}; continuing without it\n", hub_.name(), peer_,
               rail, lost == nullptr ? "closed" : lost->traits().device, why);
  }
  resend_from(rail);
  want_word();
}

void RailsPeer::on_rail_closed(std::size_t rail, const std::string& why) {
  if (words_[rail].in_flight) take_back_word(words_[rail]);
  for (Part& part : parts_) {
    if (!part.in_flight || part.rail != rail) continue;
    part.in_flight = false;
    if (several_rails()) --rails_[rail].in_flight;
    --out_[part.slot].unfinished;  // resend_from() counts it again where it has not arrived
  }
  const bool known = rails_[rail].lost;
  if (known) {
    resend_from(rail);
    want_word();
  } else {
    lose_rail(rail, why);
  }
  count_sent();
}

void RailsPeer::begin_end(std::string why) {
  if (!ending_.empty() || !status_.ok()) return;
  ending_ = std::move(why);
  ending_since_ = hub_.now();
  hub_.request_watch();
  drop_queue();
}

void RailsPeer::on_process_ended(const std::string& why) {
  process_ended_ = true;
  begin_end(fmt::format("rank {} ended: {}", peer_, why));
}

bool RailsPeer::watch(Clock::time_point now) {
  if (!status_.ok()) return false;
  if (!ending_.empty()) {
    // A peer that has sent its close notice may still have to detect a silent rail, and retransmit what was lost there.
    const bool mends = several_rails() && goodbye_at_ && arrived_ < *goodbye_at_ && !process_ended_ && any_rail_left();
    if (now - ending_since_ >= (mends ? kRepairTime : kEndingPatience)) fail({StatusCode::peer_failed, ending_});
    return true;
  }
  if (!several_rails()) return false;
  bool waits = false;
  for (std::size_t r = 0; r < shape_.rails; ++r) {
    RailState& state = rails_[r];
    state.load.forget_speed_of_idle(now);
    const bool has_parts = state.load.bytes() != 0 || state.in_flight != 0;
    if (hub_.rail(r) == nullptr || (!has_parts && !words_[r].in_flight)) continue;
    waits = true;
    const Clock::time_point since = has_parts ? state.waits_since : words_[r].since;
    if (now - since < kAskAfter) continue;
    bool heard = false;
    for (std::size_t other = 0; other < shape_.rails; ++other) {
      if (other == r || rails_[other].lost) continue;
      heard |= rails_[other].heard > since + kAskAfter;
      rails_to_ask_ |= 1U << other;
    }
    want_word();
    if (heard && now - since >= kLostAfter) {
      hub_.close_rail(
          r, fmt::format("nothing sent to rank {} on it has arrived for {} ms, although the peer answers on another rail",
                         peer_, std::chrono::duration_cast<milliseconds>(now - since).count()));
      return true;
    }
  }
  return waits;
}

void RailsPeer::fail(Status status) {
  if (!status_.ok()) return;
  status_ = std::move(status);
  drop_queue();
  hub_.note_progress();
}

void RailsPeer::leave() {
  if (leaving_) return;
  leaving_ = true;
  // Where tiles are not acknowledged yet, asks the peer to answer on every rail: a silent rail may swallow the close notice.
  for (std::size_t r = 0; several_rails() && peer_arrived_ != taken_ && r < shape_.rails; ++r) {
    if (!rails_[r].lost) rails_to_ask_ |= 1U << r;
  }
  want_word();
}

// Completions do not prove arrival: with checksums the peer may request a damaged tile again, and one of several rails may be
// silent, which is detected late. With one rail, a silent rail looks like a peer that makes no progress, and there is no
// remedy.
bool RailsPeer::confirms_end() const noexcept { return hub_.uses_checksums() || several_rails(); }

bool RailsPeer::is_quiet() const noexcept {
  // A peer that leaves may wait for this rank's control record.
  const bool owes_word = any_rail_left() && (word_under_way() || (word_due_ && status_.ok()));
  const bool awaited = confirms_end() && goodbye_at_ && owes_word;
  if (!status_.ok() || !ending_.empty()) return !awaited;
  const bool all_left = std::all_of(out_.begin(), out_.end(), [](const Outgoing& out) { return out.unfinished == 0; });
  const bool all_came = !confirms_end() || peer_arrived_ == taken_;
  return queue_.empty() && all_left && all_came && said_goodbye_ && !word_under_way();
}

bool RailsPeer::is_repairing() const noexcept {
  return several_rails() && answered_leaving_ && peer_arrived_ != taken_ && status_.ok() && ending_.empty();
}

}  // namespace shoal::rails
