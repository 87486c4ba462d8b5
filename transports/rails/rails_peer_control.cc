// RailsPeer: control records.
#include <algorithm>
#include <array>
#include <chrono>

#include "transports/rails/hub.h"
#include "transports/rails/rails_peer.h"

namespace shoal::rails {
namespace {

// Control records leave on a rail on which a packet of the peer arrived within this time of the latest one: on other rails
// they might be lost.
constexpr std::chrono::milliseconds kHeardLately{50};

}  // namespace

void RailsPeer::want_word() {
  word_due_ = true;
  hub_.want_pump(*this);
}

// A control record waits behind the data in flight on its rail.
std::size_t RailsPeer::soonest_word_rail() const noexcept {
  if (!several_rails()) return 0;
  const double otherwise = best_speed();
  std::size_t soonest = last_rail_;
  for (std::size_t r = 0; r < shape_.rails; ++r) {
    if (rails_[last_rail_].heard - rails_[r].heard > kHeardLately) continue;
    if (rails_[r].load.arrival_us(0, otherwise) < rails_[soonest].load.arrival_us(0, otherwise)) soonest = r;
  }
  return soonest;
}

// The wanted rail, or else any other; -1 where each rail has a control record in flight.
int RailsPeer::choose_word_rail(std::size_t wanted) const noexcept {
  for (std::size_t i = 0; i < shape_.rails; ++i) {
    const std::size_t r = (wanted + i) % shape_.rails;
    if (!rails_[r].lost && hub_.rail(r) != nullptr && !words_[r].in_flight) return static_cast<int>(r);
  }
  return -1;
}

int RailsPeer::post_word() {
  word_due_ = true;  // until it has been posted
  PacketKind kind = PacketKind::note;
  std::uint64_t position = 0;
  std::size_t wanted = answer_on_.value_or(soonest_word_rail());
  if (rails_to_tell_ != 0) {
    kind = PacketKind::rail_lost;
    position = static_cast<std::uint64_t>(__builtin_ctz(rails_to_tell_));
  } else if (slots_to_ask_ != 0) {
    kind = PacketKind::retransmit;
    const auto slot = static_cast<std::size_t>(__builtin_ctzll(slots_to_ask_));
    position = released_ + (slot + shape_.window - released_ % shape_.window) % shape_.window;
  } else if (rails_to_ask_ != 0) {
    kind = PacketKind::probe;
    wanted = static_cast<std::size_t>(__builtin_ctz(rails_to_ask_));
  } else if (leaving_ && !said_goodbye_) {
    kind = PacketKind::close_notice;
    position = taken_;
  }
  const int chosen = choose_word_rail(wanted);
  if (chosen < 0) return 0;  // the completion of another control record lets this one leave
  const auto rail = static_cast<std::size_t>(chosen);
  Word& word = words_[rail];
  Packet packet = front(kind);
  packet.position = position;
  encode(packet, key_out, std::span<std::byte, kPacketBytes>(word.memory, kPacketBytes));
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
  word.in_flight = true;
  word.kind = kind;
  word.position = position;
  if (several_rails()) word.since = hub_.now();
  answer_on_.reset();
  if (kind == PacketKind::rail_lost) rails_to_tell_ &= rails_to_tell_ - 1;
  if (kind == PacketKind::retransmit) slots_to_ask_ &= slots_to_ask_ - 1;
  if (kind == PacketKind::probe) rails_to_ask_ &= rails_to_ask_ - 1;
  if (kind == PacketKind::close_notice) said_goodbye_ = true;
  word_due_ = rails_to_tell_ != 0 || slots_to_ask_ != 0 || rails_to_ask_ != 0 || (leaving_ && !said_goodbye_);
  if (word_due_) hub_.want_pump(*this);
  end_if_all_came(true);
  return 0;
}

// The control record has not left: another one carries its contents.
void RailsPeer::take_back_word(Word& word) {
  word.in_flight = false;
  if (word.kind == PacketKind::rail_lost) rails_to_tell_ |= 1U << word.position;
  if (word.kind == PacketKind::retransmit) slots_to_ask_ |= std::uint64_t{1} << word.position % shape_.window;
  if (word.kind == PacketKind::close_notice) said_goodbye_ = false;
  word_due_ = true;
}

bool RailsPeer::word_under_way() const noexcept {
  return std::any_of(words_.begin(), words_.end(),
                     [](const Word& word) { return word.in_flight && word.kind != PacketKind::probe; });
}

void RailsPeer::on_word_sent(ShortMessage& sent, const Completion& completion) {
  auto& word = static_cast<Word&>(sent);
  word.in_flight = false;
  if (completion.error != 0) {
    take_back_word(word);
    lose_rail(word.rail, hub_.rail(word.rail) != nullptr ? hub_.rail(word.rail)->describe(completion) : "the rail is closed");
  }
  if (word_due_) hub_.want_pump(*this);
}

}  // namespace shoal::rails
