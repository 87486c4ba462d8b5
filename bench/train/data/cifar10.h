// CIFAR-10 in its binary format.
#pragma once

#include <string>

#include "bench/train/data/dataset.h"

namespace shoal::data {

/// Reads `folder`: data_batch_1.bin .. data_batch_5.bin (the consecutive existing ones from 1 on) or test_batch.bin. A record
/// is one byte of label (0..9) and 3,072 bytes of pixels: red, green, blue plane of 32 x 32, row by row. A file holds a whole
/// number of records. Source: https://www.cs.toronto.edu/~kriz/cifar.html, "Binary version". Errors: not_found, system_error,
/// or invalid_argument naming the file and the wrong byte.
Result<Dataset> read_cifar10(const std::string& folder, Split split);

/// Writes `dataset` (3 x 32 x 32) as one such file.
Status write_cifar10(const Dataset& dataset, const std::string& path);

}  // namespace shoal::data
