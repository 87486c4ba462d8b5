// Several texts in one.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

/// At most what precedes a text among those that are joined.
inline constexpr std::size_t kMaxTextHeadBytes = 21;
/// Appends one text to those of join_texts().
void append_text(std::string& joined, std::string_view text);
/// Each text after its length and a colon: "2:ab0:". A text may have any bytes.
std::string join_texts(std::span<const std::string> texts);
/// The `count` texts that join_texts() has joined; nothing for anything else. Safe for any bytes.
std::optional<std::vector<std::string>> split_texts(std::string_view joined, std::size_t count);

}  // namespace shoal
