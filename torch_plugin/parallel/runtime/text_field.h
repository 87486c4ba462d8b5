// TextField: a text of limited length inside a message of fixed size.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace shoal::parallel {

using TextField = std::array<char, 512>;  // zero terminated

/// Cut off where it is too long.
inline TextField to_text_field(std::string_view text) {
  TextField field{};
  std::copy_n(text.begin(), std::min(text.size(), field.size() - 1), field.begin());
  return field;
}
inline std::string to_string(const TextField& field) { return {field.begin(), std::find(field.begin(), field.end(), '\0')}; }

}  // namespace shoal::parallel
