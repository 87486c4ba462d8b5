// The requests of a keeper, which speaks for several ranks of its host, at the server.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <shoal/limits.h>
#include <shoal/store.h>

#include "src/join/store_session.h"

namespace shoal {

bool StoreSession::handle_gather_several(StoreParser& parser) {
  const auto number = parser.number();
  const auto size = parser.number();
  const auto last = parser.number();
  const auto count = parser.number();
  if (!count) return false;
  std::vector<std::pair<StoreMember, std::string_view>> given;
  while (given.size() < *count) {
    auto member = parse_member(parser);
    const auto value = member ? parser.block(kMaxStoreValueBytes) : std::nullopt;
    if (!value) return false;
    given.emplace_back(*std::move(member), *value);
  }
  StoreStep* const step = keeps_ && rank_ ? find_step(*number, *size, *last) : nullptr;
  const auto is_beyond = [&](const auto& one) { return one.first.rank >= *size; };
  if (step == nullptr || std::ranges::any_of(given, is_beyond)) return end(), false;
  rank_of_step_ = *rank_;
  for (const auto& [member, value] : given) {
    enter(member);
    step->put(member.rank, value);
  }
  if (ranks_.contains(table_.server)) rank_of_step_ = table_.server;
  tell_news();
  wait_for_step(*number, *step);
  return true;
}

bool StoreSession::handle_lost(StoreParser& parser) {
  const auto rank = parser.number();
  if (!rank) return false;
  if (!keeps_ || *rank >= static_cast<std::uint32_t>(kMaxJobRanks)) return end(), false;
  forget_member(*rank);
  table_.died.insert(*rank);
  table_.announce();
  return true;
}

bool StoreSession::handle_give_up(StoreParser& parser) {
  const auto why = parser.block(kMaxStoreValueBytes);
  if (!why) return false;
  if (!keeps_) return end(), false;
  table_.values.insert_or_assign(std::string(Store::kGivenUp), std::string(*why));
  table_.announce();
  return true;
}

// A keeper does not look: it tells the ranks of its host.
void StoreSession::tell_keeper() {
  if (say_conflict()) return;
  if (!table_.died.empty())
    say({kStoreRankDied, *table_.died.begin()});
  else
    static_cast<void>(say_why_given_up());
}

}  // namespace shoal
