// Names in messages: those nearest to one that does not exist.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace shoal::pipeline {

/// The at most three of `known` with the fewest edits from `name`, the nearest first: "'conv1', 'conv2'". Of names with equally
/// many edits the earlier one comes first.
std::string nearest_names(std::string_view name, std::span<const std::string> known);

}  // namespace shoal::pipeline
