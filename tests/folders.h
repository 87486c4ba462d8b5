// Folders for the files of a test.
#pragma once

#include <cstdlib>
#include <string>

namespace shoal::testing {

/// Makes an empty folder, in memory where that is possible, so that no time limit of a test depends on a disk. The caller
/// removes it.
inline std::string make_folder() {
  for (const char* parent : {"/dev/shm", "/tmp"}) {
    std::string folder = std::string(parent) + "/shoal-test-XXXXXX";
    if (::mkdtemp(folder.data()) != nullptr) return folder;
  }
  std::abort();
}

}  // namespace shoal::testing
