// The facts of a message (rank, call, setting, value), in any order and in any prose. tests/mentions.h has matchers for them.
#pragma once

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::testing {

/// Whether `text` holds `fact` as whole words: "rank 1" is not in "rank 12", nor 16 in 1600. No text holds an empty fact.
inline bool holds_fact(std::string_view text, std::string_view fact) {
  const auto in_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  if (fact.empty()) return false;
  for (std::size_t at = text.find(fact); at != std::string_view::npos; at = text.find(fact, at + 1)) {
    const std::size_t end = at + fact.size();
    const bool begins_inside = at > 0 && in_word(text[at - 1]) && in_word(fact.front());
    const bool ends_inside = end < text.size() && in_word(fact.back()) && in_word(text[end]);
    if (!begins_inside && !ends_inside) return true;
  }
  return false;
}

/// Whether `text` holds each of `facts`.
template <typename... Facts>
bool mentions(std::string_view text, const Facts&... facts) {
  static_assert(sizeof...(facts) > 0, "a text without facts proves nothing");
  return (holds_fact(text, facts) && ...);
}
inline bool mentions_all(std::string_view text, const std::vector<std::string>& facts) {
  return !facts.empty() && std::ranges::all_of(facts, [&](const std::string& fact) { return holds_fact(text, fact); });
}

}  // namespace shoal::testing
