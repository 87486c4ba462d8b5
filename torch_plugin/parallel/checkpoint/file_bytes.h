// Files as bytes: reading one, and replacing one such that a crash leaves the old file or the new one.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <shoal/status.h>

namespace shoal::parallel {

/// All bytes of a regular file that is not empty. Errors: not_found, system_error, invalid_argument, with the path.
Result<std::vector<char>> read_file(const std::string& path);

/// Writes the bytes to a new file beside `path` and to the disk, then renames it to `path`. Errors: system_error; then `path`
/// is what it was, and the new file has gone.
Status replace_file(const std::string& path, std::span<const char> bytes);

}  // namespace shoal::parallel
