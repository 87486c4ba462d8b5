// Finds the files of a data set, or generates them.
#pragma once

#include <optional>
#include <string>

#include "bench/train/data/dataset.h"

namespace shoal::data {

/// The kind of the images, as far as the files show it.
enum class Kind {
  official,   ///< the published number; for Fashion-MNIST and CIFAR-10's archive also the published MD5
  subset,     ///< fewer than published
  other,      ///< in the format of the data set, but other files
  generated,  ///< by make_synthetic
};

/// A data set ready for use, and its origin as text for the user.
struct Located {
  Dataset train;
  Dataset test;
  std::string origin;  ///< a folder; contains "synthetic" if no real data was found
  Kind kind = Kind::other;
};

/// "official", "subset", "other", "generated".
const char* name_of(Kind kind);
/// For results: "CIFAR-10 subset, 10,000 of 50,000 training and 2,000 of 10,000 test images". Contains no folder name.
std::string describe(const Located& images);

/// Reads `dataset` ("cifar10", "fashion_mnist" or "synthetic").
///
/// Looks in `folder`, the user's argument, else in SHOAL_DATA_DIR of the environment (missing data in either is an error),
/// else in shared/data beside the checkout that this program was built in, else in the cache folder ($XDG_CACHE_HOME or
/// ~/.cache, then shoal/data). If none has it, a synthetic data set is written to the cache folder in the same file format,
/// and read. A cifar-10-binary.tar.gz (checked by its MD5) or cifar-10-subset.tar.xz is unpacked into the cache folder with
/// tar, once: ranks that start together wait for each other. The origin states whether the files are the official ones.
/// Errors: not_found with the places that were searched; those of the readers.
Result<Located> locate(const std::string& dataset, const std::optional<std::string>& folder);

}  // namespace shoal::data
