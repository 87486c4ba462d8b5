#include "transports/rails/lane.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "transports/rails/hub.h"

namespace shoal::rails {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kLine = 64;
// A lane that ends waits this long for what is still on its way.
constexpr milliseconds kEndingPatience{300};
// A rail is asked about when nothing of what it carries has come for the first time, and given up after the second where the
// peer was heard by another one meanwhile.
constexpr milliseconds kAskAfter{500};
constexpr milliseconds kLostAfter{1500};
// Words leave by a rail on which the peer was heard within this time: by others they might vanish.
constexpr milliseconds kHeardLately{50};
// Of a tile for each rail, so that a faster one can take more of them.
constexpr std::size_t kStripesPerRail = 2;

constexpr std::size_t round_up(std::size_t bytes) noexcept { return (bytes + kLine - 1) / kLine * kLine; }
constexpr std::size_t parts_for(std::size_t bytes, std::size_t each) noexcept { return (bytes + each - 1) / each; }

}  // namespace

std::size_t LaneShape::pieces(std::size_t bytes, std::size_t alive) const noexcept {
  const std::size_t least = std::max<std::size_t>(1, parts_for(bytes, is_written(bytes) ? max_write_bytes : piece_bytes));
  if (rails == 1 || bytes <= stripe_bytes) return least;
  return std::max(least, std::min({kStripesPerRail * alive, 2 * bytes / stripe_bytes, kMaxPieces}));
}

std::size_t LaneShape::max_sent_pieces() const noexcept { return pieces(write_from > 0 ? write_from : tile_bytes, rails); }

std::size_t LaneShape::max_pieces() const noexcept { return std::max(max_sent_pieces(), pieces(tile_bytes, rails)); }

Lane::Lane(Hub& hub, int peer, std::uint16_t own_index, const LaneShape& shape)
    : index(own_index), hub_(hub), peer_(peer), shape_(shape) {}

Status Lane::prepare() {
  const std::size_t pieces = shape_.max_pieces();
  parts_per_slot_ = pieces + 1;  // the last announces
  out_stride_ = round_up(parts_per_slot_ * kPacketBytes) + round_up(shape_.tile_bytes);
  slot_stride_ = round_up(shape_.tile_bytes);
  outbox_ = Memory(shape_.window * out_stride_ + shape_.rails * round_up(kPacketBytes));
  if (pieces > 1 || shape_.write_from > 0) slots_ = Memory(shape_.window * slot_stride_);
  if (outbox_.data() == nullptr || ((pieces > 1 || shape_.write_from > 0) && slots_.data() == nullptr))
    return {StatusCode::system_error, fmt::format("{}: no memory for the link to rank {}", hub_.name(), peer_)};
  if (Status status = hub_.enroll(outbox_, false, true); !status.ok()) return status;
  if (shape_.write_from > 0) {
    if (Status status = hub_.enroll(slots_, true, false); !status.ok()) return status;
  }
  out_.resize(shape_.window);
  in_.resize(shape_.window);
  parts_ = std::vector<Part>(shape_.window * parts_per_slot_);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    parts_[i].lane = this;
    parts_[i].slot = static_cast<std::uint32_t>(i / parts_per_slot_);
    parts_[i].piece = static_cast<std::uint32_t>(i % parts_per_slot_);
    parts_[i].announces = i % parts_per_slot_ == pieces;
  }
  queue_.make_room(parts_.size());
  for (std::size_t r = 0; several_rails() && r < shape_.rails; ++r) rails_[r].load.make_room(parts_.size());
  for (std::size_t r = 0; r < shape_.rails; ++r) {
    words_[r].role = Posted::Role::word;
    words_[r].lane = this;
    words_[r].memory = outbox_.data() + shape_.window * out_stride_ + r * round_up(kPacketBytes);
    words_[r].bytes = kPacketBytes;
  }
  return {};
}

void Lane::dismiss() noexcept {
  hub_.dismiss(outbox_);
  hub_.dismiss(slots_);
}

Record::Slots Lane::own_slots(std::size_t rail) const noexcept {
  if (rail >= slots_.registrations.size()) return {};
  return {slots_.registrations[rail].base, slots_.registrations[rail].key};
}

std::byte* Lane::payload_of(std::size_t slot) const noexcept {
  return outbox_.data() + slot * out_stride_ + round_up(parts_per_slot_ * kPacketBytes);
}

// Sending
// -----------------------------------------------------------------------------------------------------------------------

std::uint32_t Lane::pieces_of(std::size_t bytes) const noexcept {
  std::size_t alive = 0;
  for (std::size_t r = 0; r < shape_.rails; ++r) alive += rails_[r].lost ? 0 : 1;
  return static_cast<std::uint32_t>(shape_.pieces(bytes, alive));
}

// Where that is not possible the tile is copied.
bool Lane::register_lent(Outgoing& out, std::span<const std::byte> data) {
  if (!hub_.lasts(data)) return false;
  for (std::size_t r = 0; r < shape_.rails; ++r) {
    RegistrationCache* const cache = hub_.rail(r) == nullptr ? nullptr : hub_.registrations(r);
    if (cache == nullptr) continue;
    out.entries[r] = cache->acquire(data.data(), data.size(), hub_.lasting_changes());
    if (out.entries[r] != nullptr) continue;
    unregister_lent(out);
    return false;
  }
  return true;
}

void Lane::unregister_lent(Outgoing& out) {
  for (std::size_t r = 0; r < shape_.rails; ++r) {
    RegistrationCache::Entry* const entry = std::exchange(out.entries[r], nullptr);
    if (entry != nullptr && hub_.rail(r) != nullptr) hub_.registrations(r)->release(*entry);
  }
  out.lent = nullptr;
}

bool Lane::take(const TileHeader& header, std::span<const std::byte> data, bool lend) {
  assert(header.size_bytes == data.size() && data.size() <= shape_.tile_bytes);
  if (!status_.ok() || !ending_.empty() || leaving_) return false;
  const std::size_t slot = taken_ % shape_.window;
  Outgoing& out = out_[slot];
  // The second: a card may still read, or write once more, what the peer has released already.
  if (taken_ - peer_released_ == shape_.window || out.unfinished != 0) {
    refused_ = true;
    return false;
  }
  // An operation that failed may still arrive: until the peer has closed its slots to a lost rail nothing new is written there.
  const bool by_write = shape_.is_written(data.size());
  if (by_write && (rails_lost_ & ~peer_rails_lost_) != 0) {
    refused_ = true;
    return false;
  }
  unregister_lent(out);
  if (lend && register_lent(out, data)) {
    out.lent = data.data();
  } else if (!data.empty()) {
    std::memcpy(payload_of(slot), data.data(), data.size());
  }
  out.tile = header;
  out.position = taken_;
  out.by_write = by_write;
  out.pieces = pieces_of(data.size());
  out.arrived = false;
  ++taken_;
  if (out.by_write) {
    ++out.unfinished;
    queue_.push(part_of(slot, parts_per_slot_ - 1));
  }
  for (std::uint32_t i = 0; i < out.pieces; ++i) {
    ++out.unfinished;
    queue_.push(part_of(slot, i));
  }
  if (!pump()) hub_.want_pump(*this);
  return true;
}

// Until a rail is measured it counts as being as fast as the best.
double Lane::best_speed() const noexcept {
  double best = 0;
  for (std::size_t r = 0; r < shape_.rails; ++r) best = std::max(best, rails_[r].load.bytes_per_us());
  return best > 0 ? best : 1;
}

int Lane::choose_rail(std::size_t bytes, std::uint32_t refused) const noexcept {
  int best = -1;
  double least = 0;
  const double otherwise = best_speed();
  for (std::size_t r = 0; r < shape_.rails; ++r) {
    if (rails_[r].lost || hub_.rail(r) == nullptr || (refused >> r & 1) != 0) continue;
    const double time = rails_[r].load.arrival_us(bytes, otherwise);
    if (best >= 0 && time >= least) continue;
    best = static_cast<int>(r);
    least = time;
  }
  return best;
}

Packet Lane::front(PacketKind kind) noexcept {
  Packet packet;
  packet.kind = kind;
  packet.link = peer_index;
  packet.token = token_out;
  packet.released = released_;
  packet.arrived = arrived_;
  if (several_rails()) {
    packet.come = come_;
    packet.sent_us = static_cast<std::uint32_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(hub_.now().time_since_epoch()).count());
    for (std::uint64_t i = 0; i + 1 + arrived_ < released_ + shape_.window; ++i) {
      if (in_[(arrived_ + 1 + i) % shape_.window].complete) packet.arrived_after |= std::uint64_t{1} << i;
    }
  }
  told_released_ = released_;
  told_arrived_ = arrived_;
  return packet;
}

int Lane::post(Part& part, std::size_t rail) {
  Outgoing& out = out_[part.slot];
  Rail& on = *hub_.rail(rail);
  void* const descriptor = outbox_.descriptor(rail);
  const std::byte* const payload = out.lent != nullptr ? out.lent : payload_of(part.slot);
  void* const payload_descriptor = out.entries[rail] != nullptr ? out.entries[rail]->registration.descriptor : descriptor;
  const Extent extent = piece_extent(out.tile.size_bytes, out.pieces, part.announces ? 0 : part.piece);
  const std::size_t bytes = part.announces ? 0 : extent.bytes;
  int result = 0;
  if (out.by_write && !part.announces) {
    const Mark mark{peer_index, static_cast<std::uint16_t>(out.position % kMarkPositions),
                    static_cast<std::uint8_t>(part.piece)};
    const std::uint64_t address = peer_slots[rail].base + part.slot * slot_stride_ + extent.offset;
    result = on.post_write(part, addresses[rail], {payload + extent.offset, bytes, payload_descriptor}, address,
                           peer_slots[rail].key, to_data(mark));
  } else {
    Packet packet = front(part.announces ? PacketKind::announce : PacketKind::data);
    packet.position = out.position;
    packet.tile = out.tile;
    packet.piece = part.announces ? 0 : part.piece;
    packet.pieces = out.pieces;
    std::byte* const header = header_of(part.slot, part.piece);
    encode(packet, std::span<std::byte, kPacketBytes>(header, kPacketBytes));
    if (bytes == 0 || (out.pieces == 1 && out.lent == nullptr)) {  // the header lies in front of the payload
      const Piece whole{header, kPacketBytes + bytes, descriptor};
      result = on.post_send(part, addresses[rail], {&whole, 1});
    } else {
      const std::array<Piece, 2> both{Piece{header, kPacketBytes, descriptor},
                                      Piece{payload + extent.offset, bytes, payload_descriptor}};
      result = on.post_send(part, addresses[rail], both);
    }
  }
  if (result != 0) return result;
  part.rail = static_cast<std::uint8_t>(rail);
  part.under_way = true;
  if (several_rails()) {
    RailState& state = rails_[rail];
    if (state.load.bytes() == 0 && state.under_way == 0) state.waits_since = hub_.now();
    ++state.under_way;
    state.load.post(static_cast<std::uint32_t>(bytes + kPacketBytes));
  }
  return 0;
}

bool Lane::pump() {
  std::uint32_t refused = 0;
  while (!queue_.empty() && status_.ok() && ending_.empty()) {
    Part& part = queue_.front();
    const int rail = choose_rail(part.announces ? 0 : out_[part.slot].tile.size_bytes / out_[part.slot].pieces, refused);
    if (rail < 0) return false;
    const int result = post(part, static_cast<std::size_t>(rail));
    if (result == kAgain) {
      refused |= 1U << rail;
    } else if (result != 0) {
      Completion failed;
      failed.error = -result;
      lose_rail(static_cast<std::size_t>(rail), hub_.rail(static_cast<std::size_t>(rail))->describe(failed));
    } else {
      queue_.pop();
    }
  }
  if (word_due_ && status_.ok()) return post_word() != kAgain;
  return true;
}

void Lane::want_word() {
  word_due_ = true;
  hub_.want_pump(*this);
}

// Words wait behind what is on its way by their rail.
std::size_t Lane::soonest_word_rail() const noexcept {
  if (!several_rails()) return 0;
  const double otherwise = best_speed();
  std::size_t soonest = last_rail_;
  for (std::size_t r = 0; r < shape_.rails; ++r) {
    if (rails_[last_rail_].heard - rails_[r].heard > kHeardLately) continue;
    if (rails_[r].load.arrival_us(0, otherwise) < rails_[soonest].load.arrival_us(0, otherwise)) soonest = r;
  }
  return soonest;
}

// The rail that is wanted, or else any; -1 where each has a word under way.
int Lane::choose_word_rail(std::size_t wanted) const noexcept {
  for (std::size_t i = 0; i < shape_.rails; ++i) {
    const std::size_t r = (wanted + i) % shape_.rails;
    if (!rails_[r].lost && hub_.rail(r) != nullptr && !words_[r].under_way) return static_cast<int>(r);
  }
  return -1;
}

int Lane::post_word() {
  PacketKind kind = PacketKind::note;
  std::uint64_t position = 0;
  std::size_t wanted = answer_on_.value_or(soonest_word_rail());
  if (rails_to_tell_ != 0) {
    kind = PacketKind::rail_lost;
    position = static_cast<std::uint64_t>(__builtin_ctz(rails_to_tell_));
  } else if (rails_to_ask_ != 0) {
    kind = PacketKind::ask;
    wanted = static_cast<std::size_t>(__builtin_ctz(rails_to_ask_));
  } else if (leaving_ && !said_goodbye_) {
    kind = PacketKind::goodbye;
    position = taken_;
  }
  const int chosen = choose_word_rail(wanted);
  if (chosen < 0) return 0;  // the completion of one lets this one go
  const auto rail = static_cast<std::size_t>(chosen);
  Word& word = words_[rail];
  Packet packet = front(kind);
  packet.position = position;
  encode(packet, std::span<std::byte, kPacketBytes>(word.memory, kPacketBytes));
  const Piece piece{word.memory, word.bytes, outbox_.descriptor(rail)};
  const int result = hub_.rail(rail)->post_send(word, addresses[rail], {&piece, 1});
  if (result == kAgain) return result;
  if (result != 0) {
    Completion failed;
    failed.error = -result;
    lose_rail(rail, hub_.rail(rail)->describe(failed));
    return result;
  }
  word.rail = static_cast<std::uint8_t>(rail);
  word.under_way = true;
  word.kind = kind;
  word.position = position;
  if (several_rails()) word.since = hub_.now();
  answer_on_.reset();
  if (kind == PacketKind::rail_lost) rails_to_tell_ &= rails_to_tell_ - 1;
  if (kind == PacketKind::ask) rails_to_ask_ &= rails_to_ask_ - 1;
  if (kind == PacketKind::goodbye) said_goodbye_ = true;
  word_due_ = rails_to_tell_ != 0 || rails_to_ask_ != 0 || (leaving_ && !said_goodbye_);
  if (word_due_) hub_.want_pump(*this);
  return 0;
}

// It has not left: what it says is said by another.
void Lane::take_back_word(Word& word) {
  word.under_way = false;
  if (word.kind == PacketKind::rail_lost) rails_to_tell_ |= 1U << word.position;
  if (word.kind == PacketKind::goodbye) said_goodbye_ = false;
  word_due_ = true;
}

bool Lane::word_under_way() const noexcept {
  return std::any_of(words_.begin(), words_.end(), [](const Word& word) { return word.under_way; });
}

void Lane::finish_part(Part& part) {
  part.under_way = false;
  Outgoing& out = out_[part.slot];
  if (--out.unfinished == 0 && refused_) hub_.note_move();
  count_sent();
}

void Lane::count_sent() {
  while (sent_ < taken_) {
    Outgoing& out = out_[sent_ % shape_.window];
    if (out.unfinished != 0) return;
    // What was lent may have to leave once more, by another rail, until it has come.
    if (out.lent != nullptr && several_rails() && !out.arrived) return;
    unregister_lent(out);
    ++sent_;
    hub_.note_move();
  }
}

void Lane::drop_queue() {
  while (!queue_.empty()) {
    Part& part = queue_.front();
    queue_.pop();
    // Not counted as sent: it was not.
    --out_[part.slot].unfinished;
  }
}

void Lane::on_sent(Part& part, const Completion& completion) {
  part.under_way = false;
  if (several_rails()) {
    --rails_[part.rail].under_way;
    rails_[part.rail].waits_since = hub_.now();
  }
  const Outgoing& out = out_[part.slot];
  if (completion.error == 0 || out.arrived || out.position < peer_released_) return finish_part(part);
  const std::size_t rail = part.rail;
  const std::string why = hub_.rail(rail) != nullptr ? hub_.rail(rail)->describe(completion) : "it is closed";
  if (status_.ok() && ending_.empty()) {
    queue_.push(part);
    lose_rail(rail, why);
    hub_.want_pump(*this);
  } else {
    --out_[part.slot].unfinished;
  }
}

void Lane::on_word_sent(Short& sent, const Completion& completion) {
  auto& word = static_cast<Word&>(sent);
  word.under_way = false;
  if (completion.error != 0) {
    take_back_word(word);
    lose_rail(word.rail, hub_.rail(word.rail) != nullptr ? hub_.rail(word.rail)->describe(completion) : "it is closed");
  }
  if (word_due_) hub_.want_pump(*this);
}

// Acknowledgements
// -----------------------------------------------------------------------------------------------------------------------

void Lane::take_acknowledgements(const Packet& packet, std::size_t rail) {
  if (packet.released > taken_ || packet.arrived > taken_) return;  // nonsense
  if (several_rails()) {
    const Clock::time_point now = hub_.now();
    rails_[rail].heard = now;
    last_rail_ = rail;
    for (std::size_t r = 0; r < shape_.rails; ++r) {
      if (!rails_[r].lost && rails_[r].load.come(packet.come[r], packet.sent_us, now)) rails_[r].waits_since = now;
    }
    for (std::uint64_t p = peer_released_; p < taken_; ++p) {
      const bool come = p < packet.released || p < packet.arrived ||
                        (p > packet.arrived && (packet.arrived_after >> (p - packet.arrived - 1) & 1) != 0);
      if (come) out_[p % shape_.window].arrived = true;
    }
    count_sent();
  }
  if (packet.released <= peer_released_) return;
  peer_released_ = packet.released;
  if (std::exchange(refused_, false)) hub_.note_move();
}

// Receiving
// -----------------------------------------------------------------------------------------------------------------------

Lane::Incoming* Lane::incoming_for(std::uint64_t position) noexcept {
  if (position < released_ || position - released_ >= shape_.window) return nullptr;
  Incoming& incoming = in_[position % shape_.window];
  if (incoming.complete) return nullptr;  // it comes once more
  incoming.in_use = true;
  return &incoming;
}

void Lane::finish_incoming(Incoming& incoming, std::uint64_t position) {
  if (!ending_.empty()) ending_since_ = hub_.now();
  const bool all = incoming.pieces != 0 && incoming.got == incoming.pieces;
  if (!all) return;
  incoming.complete = true;
  if (incoming.held == nullptr) incoming.data = {slot_memory(position % shape_.window), incoming.tile.size_bytes};
  if (position == arrived_) {
    while (arrived_ - released_ < shape_.window && in_[arrived_ % shape_.window].complete) ++arrived_;
    hub_.note_move();
  }
  // Whoever shares the load among rails wants to know what has come.
  if (several_rails() && position + 1 >= told_arrived_ + std::max<std::size_t>(1, shape_.window / 4)) want_word();
  if (goodbye_at_ && arrived_ >= *goodbye_at_) fail({StatusCode::peer_failed, ending_});
}

bool Lane::on_packet(const Packet& packet, Receive& receive, std::span<const std::byte> payload) {
  if (!status_.ok()) return false;
  take_acknowledgements(packet, receive.rail);
  switch (packet.kind) {
    case PacketKind::note:
      return false;
    case PacketKind::ask:
      answer_on_ = receive.rail;
      want_word();
      return false;
    case PacketKind::rail_lost:
      if (packet.position >= shape_.rails) return false;
      peer_rails_lost_ |= 1U << packet.position;
      if (std::exchange(refused_, false)) hub_.note_move();
      lose_rail(packet.position, "the other end has lost it");
      return false;
    case PacketKind::goodbye:
      goodbye_at_ = packet.position;
      begin_end(fmt::format("rank {} closed the connection", peer_));
      if (arrived_ >= *goodbye_at_) fail({StatusCode::peer_failed, ending_});
      return false;
    case PacketKind::data:
    case PacketKind::announce:
      ++come_[receive.rail];
      break;
  }
  Incoming* incoming = incoming_for(packet.position);
  if (incoming == nullptr) {
    if (several_rails()) want_word();  // the sender does not know that it has come
    return false;
  }
  if (incoming->pieces == 0) {
    incoming->pieces = packet.pieces;
    incoming->tile = packet.tile;
  }
  const bool fits = incoming->pieces == packet.pieces && incoming->tile == packet.tile;
  bool held = false;
  if (packet.kind == PacketKind::announce) {
    if (!fits || slots_.size() == 0) return false;
  } else {
    const Extent extent = piece_extent(packet.tile.size_bytes, packet.pieces, packet.piece);
    if (!fits || incoming->have[packet.piece] || payload.size() != extent.bytes) return false;
    if (packet.pieces == 1) {
      incoming->held = &receive;
      incoming->data = payload;
      held = true;
    } else {
      if (slots_.size() == 0) return false;
      std::memcpy(slot_memory(packet.position % shape_.window) + extent.offset, payload.data(), payload.size());
    }
    incoming->have[packet.piece] = true;
    ++incoming->got;
  }
  finish_incoming(*incoming, packet.position);
  return held;
}

void Lane::on_written(const Mark& mark, std::size_t rail) {
  if (!status_.ok()) return;
  ++come_[rail];
  const std::uint64_t ahead = (mark.position + kMarkPositions - released_ % kMarkPositions) % kMarkPositions;
  Incoming* incoming = incoming_for(released_ + ahead);
  if (incoming == nullptr || incoming->have[mark.piece]) return;
  incoming->have[mark.piece] = true;
  ++incoming->got;
  finish_incoming(*incoming, released_ + ahead);
}

const Arrival* Lane::peek() noexcept {
  if (arrived_ == released_) return nullptr;
  const Incoming& front = in_[released_ % shape_.window];
  if (shown_ <= released_) {
    arrival_ = {front.tile, front.data};
    shown_ = released_ + 1;
  }
  return &arrival_;
}

void Lane::forget(Incoming& incoming) noexcept {
  if (incoming.held != nullptr) hub_.take_back(*incoming.held);
  incoming = {};
}

void Lane::release() noexcept {
  assert(arrived_ > released_);
  forget(in_[released_ % shape_.window]);
  ++released_;
  if (released_ - told_released_ >= std::max<std::size_t>(1, shape_.window / 4)) want_word();
}

// The end
// -----------------------------------------------------------------------------------------------------------------------

bool Lane::any_rail_left() const noexcept {
  for (std::size_t r = 0; r < shape_.rails; ++r) {
    if (!rails_[r].lost && hub_.rail(r) != nullptr) return true;
  }
  return false;
}

// What has left by that rail and is not known to have come leaves once more, by another one.
void Lane::resend_from(std::size_t rail) {
  for (std::uint64_t p = peer_released_; p < taken_; ++p) {
    Outgoing& out = out_[p % shape_.window];
    if (out.arrived) continue;
    for (std::size_t i = 0; i < parts_per_slot_; ++i) {
      Part& part = part_of(p % shape_.window, i);
      const bool belongs = part.announces ? out.by_write : i < out.pieces;
      if (!belongs || part.rail != rail || part.queued || part.under_way) continue;
      ++out.unfinished;
      queue_.push(part);
    }
  }
  if (!queue_.empty()) hub_.want_pump(*this);
}

void Lane::lose_rail(std::size_t rail, const std::string& why) {
  if (rails_[rail].lost) return;
  rails_[rail].lost = true;
  rails_[rail].load.drop();
  rails_lost_ |= 1U << rail;
  rails_to_tell_ |= 1U << rail;
  hub_.dismiss_one(slots_, rail);
  if (!any_rail_left()) {
    begin_end(fmt::format("rank {} cannot be reached: {}", peer_, why));
    return;
  }
  if (!status_.ok() || !ending_.empty() || leaving_) return;
  const Rail* lost = hub_.rail(rail);
  fmt::print(stderr, "shoal: {}: rank {} is no longer reached by rail {} ({}): {}; going on without it\n", hub_.name(), peer_,
             rail, lost == nullptr ? "closed" : lost->traits().device, why);
  resend_from(rail);
  want_word();
}

void Lane::on_rail_closed(std::size_t rail, const std::string& why) {
  if (words_[rail].under_way) take_back_word(words_[rail]);
  for (Part& part : parts_) {
    if (!part.under_way || part.rail != rail) continue;
    part.under_way = false;
    if (several_rails()) --rails_[rail].under_way;
    --out_[part.slot].unfinished;  // resend_from() counts it again where it has not come
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

void Lane::begin_end(std::string why) {
  if (!ending_.empty() || !status_.ok()) return;
  ending_ = std::move(why);
  ending_since_ = hub_.now();
  hub_.begin_watching();
  drop_queue();
}

void Lane::on_death(const std::string& why) { begin_end(fmt::format("rank {} ended: {}", peer_, why)); }

bool Lane::watch(Clock::time_point now) {
  if (!status_.ok()) return false;
  if (!ending_.empty()) {
    if (now - ending_since_ >= kEndingPatience) fail({StatusCode::peer_failed, ending_});
    return true;
  }
  if (!several_rails()) return false;
  bool waits = false;
  for (std::size_t r = 0; r < shape_.rails; ++r) {
    RailState& state = rails_[r];
    state.load.forget_speed_of_idle(now);
    const bool has_parts = state.load.bytes() != 0 || state.under_way != 0;
    if (hub_.rail(r) == nullptr || (!has_parts && !words_[r].under_way)) continue;
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
          r, fmt::format("nothing of what was sent to rank {} by it has come for {} ms, though the peer is heard by another",
                         peer_, std::chrono::duration_cast<milliseconds>(now - since).count()));
      return true;
    }
  }
  return waits;
}

void Lane::fail(Status status) {
  if (!status_.ok()) return;
  status_ = std::move(status);
  drop_queue();
  hub_.note_move();
}

void Lane::leave() {
  if (leaving_) return;
  leaving_ = true;
  want_word();
}

bool Lane::is_quiet() const noexcept {
  if (!status_.ok() || !ending_.empty()) return true;
  const bool all_left = std::all_of(out_.begin(), out_.end(), [](const Outgoing& out) { return out.unfinished == 0; });
  return queue_.empty() && all_left && said_goodbye_ && !word_under_way();
}

}  // namespace shoal::rails
