// Matchers for the facts of a message (tests/facts.h).
#pragma once

#include <gmock/gmock.h>

#include <string>
#include <string_view>
#include <vector>

#include "tests/facts.h"

namespace shoal::testing {

/// Matches a text that holds each of `facts`, at least one string.
MATCHER_P(MentionsAll, facts, (negation ? "does not mention all of " : "mentions ") + ::testing::PrintToString(facts)) {
  const std::string_view text(arg);
  for (const auto& fact : facts) {
    if (!holds_fact(text, fact)) *result_listener << "without " << ::testing::PrintToString(fact) << " ";
  }
  return mentions_all(text, facts);
}

/// The same with the facts as arguments.
template <typename... Facts>
auto Mentions(const Facts&... facts) {  // NOLINT(readability-identifier-naming): as matchers are named
  return MentionsAll(std::vector<std::string>{std::string(facts)...});
}

}  // namespace shoal::testing
