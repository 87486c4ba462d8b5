#include "src/join/store_relay.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <shoal/limits.h>
#include <shoal/store.h>

#include "src/join/rank_names.h"
#include "src/join/store_parser.h"
#include "src/join/store_protocol.h"
#include "src/join/store_session.h"
#include "src/join/text_list.h"

namespace shoal {
namespace {

// Each time that ranks come after this time, the next time is twice as long, so that a slow start takes few requests.
constexpr auto kFirstSilence = std::chrono::milliseconds(250);
constexpr auto kLastSilence = std::chrono::seconds(4);

}  // namespace

StoreRelay::StoreRelay(StoreTable& table, RecordCipher cipher, std::size_t expected)
    : table_(table), cipher_(std::move(cipher)), expected_(expected), silence_(kFirstSilence) {}

StoreStep* StoreRelay::step() {
  const auto found = table_.steps.find(number_);
  return found == table_.steps.end() || found->second.answer != nullptr ? nullptr : &found->second;
}

void StoreRelay::send(std::string_view request) {
  if (!over_) append_sealed(unsent, cipher_, request);
}

void StoreRelay::gave(std::uint32_t number) {
  if (number != number_) sent_.clear();
  number_ = number;
  const auto now = Clock::now();
  if (!settled_) due_ = now + silence_;
  pass_on(now);
}

void StoreRelay::pass_on(Clock::time_point now) {
  const StoreStep* const given = step();
  if (given == nullptr || sent_.size() == given->values().size()) {
    due_ = Clock::time_point::max();
    return;
  }
  const bool all = table_.members.size() >= expected_ && given->values().size() >= table_.members.size();
  if (!all && now < due_) return;
  if (!all) silence_ = std::min<Clock::duration>(2 * silence_, kLastSilence);
  send_values();
}

// The values that the store does not have yet.
void StoreRelay::send_values() {
  due_ = Clock::time_point::max();
  const StoreStep* const given = step();
  if (given == nullptr) return;
  std::string values;
  std::uint32_t count = 0;
  const auto flush = [&] {
    std::string text = store_request(StoreRequest::gather_several);
    for (const std::uint32_t number : {number_, given->size(), std::uint32_t{given->last}, std::exchange(count, 0)})
      append_number(text, number);
    send(text + std::exchange(values, {}));
  };
  for (const auto& [rank, value] : given->values()) {
    if (table_.died.contains(rank) || !sent_.insert(rank).second) continue;
    if (count > 0 && values.size() + value.size() > kMaxStoreValueBytes) flush();
    const auto member = table_.members.find(rank);
    append_member(values, member != table_.members.end() ? member->second : StoreMember{rank, given->size(), 0, {}});
    append_block(values, value);
    ++count;
  }
  if (count > 0) flush();
}

void StoreRelay::lost(std::uint32_t rank) {
  std::string text = store_request(StoreRequest::lost);
  append_number(text, rank);
  send(text);
}

void StoreRelay::give_up(std::string_view why) {
  std::string text = store_request(StoreRequest::give_up);
  append_block(text, why);
  send(text);
}

void StoreRelay::stop() {
  send_values();
  if (!std::exchange(stopping_, true)) send(store_request(StoreRequest::stop));
}

void StoreRelay::leave() { send(store_request(StoreRequest::leave)); }

void StoreRelay::receive(std::string_view bytes) {
  while (!bytes.empty() && !over_) {
    const auto taken = open_sealed(received_, cipher_, bytes);
    while (!over_ && handle()) {
    }
    if (!taken) return end();
    bytes.remove_prefix(*taken);
  }
}

void StoreRelay::end() {
  if (std::exchange(over_, true)) return;
  unsent.clear();
  table_.died.insert(0);
  table_.announce();
}

// Processes one whole message; returns false if none has arrived.
bool StoreRelay::handle() {
  StoreParser parser(received_);
  const auto kind = parser.number();
  if (!kind) return false;
  switch (*kind) {
    case kStoreValues: {
      const auto length = parser.long_number();
      const StoreStep* const waits = step();
      if (!length) return false;
      if (waits == nullptr || *length > std::uint64_t{waits->size()} * (kMaxStoreValueBytes + kMaxTextHeadBytes))
        return end(), false;
      if (!parser.bytes(*length)) return false;
      take_values(std::string_view(received_).substr(0, parser.taken()));
      break;
    }
    case kStoreMissing: {
      const auto named = parser.number() ? parser.number() : std::nullopt;  // after the number of all that are missing
      if (!named) return false;
      if (*named > kNamedRanks) return end(), false;
      if (!parser.bytes(*named * sizeof *named)) return false;
      take_missing(std::string_view(received_).substr(0, parser.taken()));
      break;
    }
    case kStoreRankDied: {
      const auto rank = parser.number();
      if (!rank) return false;
      if (*rank >= static_cast<std::uint32_t>(kMaxJobRanks)) return end(), false;
      table_.died.insert(*rank);
      break;
    }
    case kStoreGivenUp:
    case kStoreConflict: {
      const auto why = parser.block(kMaxStoreValueBytes);
      if (parser.hostile()) return end(), false;
      if (!why) return false;
      if (*kind == kStoreConflict)
        table_.conflict = *why;
      else
        table_.values.try_emplace(std::string(Store::kGivenUp), *why);  // it may be that of a rank of this host
      break;
    }
    default:
      return end(), false;
  }
  received_.erase(0, parser.taken());
  if (table_.has_news()) table_.announce();
  return true;
}

void StoreRelay::take_values(std::string_view answer) {
  StoreStep& complete = *step();
  complete.answer = std::make_shared<const std::string>(answer);
  over_ = complete.last;  // rank 0 waits for the end of the connection
  settled_ = true;
  stopping_ = false;
  sent_.clear();
  expected_ = 0;
  due_ = Clock::time_point::max();
  StoreSession::complete_step(table_, number_);
}

void StoreRelay::take_missing(std::string_view answer) {
  stopping_ = false;
  sent_.clear();  // a rank that asks again has a value for the store again
  if (const StoreStep* const waits = step(); waits != nullptr) {
    for (StoreSession* const session : std::set(waits->waiting)) session->answer_gather(answer);
  }
}

}  // namespace shoal
