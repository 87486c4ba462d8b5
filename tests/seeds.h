// The seeds of a random test: its usual ones; or, on request, one seed to replay or many for a long run.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

namespace shoal::testing {

struct Seeds {
  std::uint64_t first = 0;
  std::uint64_t count = 0;

  [[nodiscard]] std::uint64_t end() const { return first + count; }
};

/// SHOAL_TEST_SEED=n: seed n. SHOAL_TEST_SEEDS=n: n seeds from `usual.first`; first:n: n seeds from `first`.
inline Seeds wanted_seeds(Seeds usual) {
  const auto number = [](const std::string& text) { return std::strtoull(text.c_str(), nullptr, 10); };
  if (const char* one = std::getenv("SHOAL_TEST_SEED")) return {number(one), 1};
  const char* many = std::getenv("SHOAL_TEST_SEEDS");
  if (many == nullptr) return usual;
  const std::string text = many;
  const auto colon = text.find(':');
  if (colon == std::string::npos) return {usual.first, number(text)};
  return {number(text.substr(0, colon)), number(text.substr(colon + 1))};
}

}  // namespace shoal::testing
