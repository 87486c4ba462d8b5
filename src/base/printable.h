// Text from other processes, made safe for a terminal.
#pragma once

#include <algorithm>
#include <string>

namespace shoal {

/// The sender of `text` must not write its own lines or colours on the user's terminal: control characters become '?'.
inline std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return text;
}

}  // namespace shoal
