// Folders for the files of a test.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace shoal::testing {

/// What the names of these folders start with.
inline constexpr const char* kFolderPrefix = "shoal-test-";

/// Makes an empty folder, in memory where that is possible: a disk that other processes keep busy can delay a rank's files by
/// seconds, which no time limit of a test allows for. The caller removes it.
inline std::string make_folder() {
  for (const char* parent : {"/dev/shm", "/tmp"}) {
    std::string folder = std::string(parent) + "/" + kFolderPrefix + "XXXXXX";
    if (::mkdtemp(folder.data()) != nullptr) return folder;
  }
  std::abort();
}

}  // namespace shoal::testing
