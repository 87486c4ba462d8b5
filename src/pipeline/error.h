// The error of every check in this room.
#pragma once

#include <string>
#include <utility>

#include <shoal/status.h>

namespace shoal::pipeline {

inline Status invalid(std::string message) { return {StatusCode::invalid_argument, std::move(message)}; }

}  // namespace shoal::pipeline
