// Where the files of a data set are, or come from.
#pragma once

#include <optional>
#include <string>

#include "bench/train/data/dataset.h"

namespace shoal::data {

/// What the images are, as far as files can tell.
enum class Kind {
  official,   ///< as many as published; of Fashion-MNIST and of CIFAR-10's archive their MD5 as well
  subset,     ///< fewer than published
  other,      ///< in the layout of the data set, but other files
  generated,  ///< by make_synthetic
};

/// A data set ready for use, and where it comes from in words for the user.
struct Located {
  Dataset train;
  Dataset test;
  std::string origin;  ///< a folder, and "synthetic" said aloud where nothing real was found
  Kind kind = Kind::other;
};

/// "official", "subset", "other", "generated".
const char* name_of(Kind kind);
/// For results: "CIFAR-10 subset, 10,000 of 50,000 training and 2,000 of 10,000 test images". Names no folder.
std::string describe(const Located& images);

/// Reads `dataset` ("cifar10", "fashion_mnist" or "synthetic").
///
/// Looks in `folder` (the user's word, then the SHOAL_DATA_DIR of the environment: missing data there is an error), else in
/// shared/data beside the checkout that this program was built in, else in the cache folder ($XDG_CACHE_HOME or ~/.cache, then
/// shoal/data). Where none has it, a synthetic data set is written to the cache folder in the same file format, and read. A
/// cifar-10-binary.tar.gz (checked by its MD5) or cifar-10-subset.tar.xz is unpacked into the cache folder with tar, once:
/// ranks that start together wait for each other. The origin says whether the files are the official ones. Errors: not_found
/// with the places that were searched; what the readers say.
Result<Located> locate(const std::string& dataset, const std::optional<std::string>& folder);

}  // namespace shoal::data
