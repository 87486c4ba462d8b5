// Several texts in one.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

/// Each text after its length and a colon: "2:ab0:". A text may have any bytes.
std::string join_texts(std::span<const std::string> texts);
/// The `count` texts that join_texts() has joined; nothing for anything else. Safe for any bytes.
std::optional<std::vector<std::string>> split_texts(std::string_view joined, std::size_t count);

}  // namespace shoal
