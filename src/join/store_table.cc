#include "src/join/store_table.h"

#include <shoal/store.h>

#include "src/join/store_protocol.h"
#include "src/join/store_session.h"
#include "src/join/text_list.h"

namespace shoal {

void StoreStep::put(std::uint32_t rank, std::string_view value) { values_.insert_or_assign(rank, std::string(value)); }

void StoreStep::make_answer() {
  std::string joined;
  for (const auto& [rank, value] : values_) append_text(joined, value);
  std::string text;
  append_number(text, kStoreValues);
  append_number(text, static_cast<std::uint32_t>(joined.size()));
  append_number(text, static_cast<std::uint32_t>(std::uint64_t{joined.size()} >> 32));
  answer = std::make_shared<const std::string>(text + joined);
}

std::vector<std::uint32_t> StoreStep::missing() const {
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t rank = 0; rank < size_; ++rank) {
    if (!has(rank)) ranks.push_back(rank);
  }
  return ranks;
}

bool StoreTable::has_news() const { return !died.empty() || !conflict.empty() || values.contains(Store::kGivenUp); }

bool StoreTable::has_failed(std::size_t size) const {
  return (!died.empty() && *died.begin() < size) || values.contains(Store::kGivenUp);
}

void StoreTable::announce() {
  for (StoreSession* const session : entered) session->announce();  // before their answers
  std::vector<StoreSession*> sessions;                              // a session that has been answered no longer waits
  for (const auto& [key, session] : waiting) sessions.push_back(session);
  for (const auto& [number, step] : steps) sessions.insert(sessions.end(), step.waiting.begin(), step.waiting.end());
  for (StoreSession* const session : sessions) session->look_again();
}

std::vector<int> StoreTable::absent(int size) const {
  const StoreStep* waits = nullptr;
  for (const auto& [number, step] : steps) {
    if (step.has(0) && step.answer == nullptr) waits = &step;
  }
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) {
    const auto number = static_cast<std::uint32_t>(rank);
    if (waits != nullptr ? !waits->has(number) : !members.contains(number)) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace shoal
