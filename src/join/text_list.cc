#include "src/join/text_list.h"

#include <charconv>

namespace shoal {

void append_text(std::string& joined, std::string_view text) {
  joined.append(std::to_string(text.size())).append(":").append(text);
}

std::string join_texts(std::span<const std::string> texts) {
  std::string joined;
  for (const std::string& text : texts) append_text(joined, text);
  return joined;
}

std::optional<std::vector<std::string>> split_texts(std::string_view joined, std::size_t count) {
  std::vector<std::string> texts;
  while (texts.size() < count) {
    std::size_t length = 0;
    const auto [end, error] = std::from_chars(joined.data(), joined.data() + joined.size(), length);
    if (error != std::errc()) return std::nullopt;
    joined.remove_prefix(static_cast<std::size_t>(end - joined.data()));
    if (!joined.starts_with(':') || joined.size() - 1 < length) return std::nullopt;
    texts.emplace_back(joined.substr(1, length));
    joined.remove_prefix(1 + length);
  }
  if (!joined.empty()) return std::nullopt;
  return texts;
}

}  // namespace shoal
