// Fashion-MNIST (and MNIST) in their IDX format.
#pragma once

#include <string>

#include "bench/train/data/dataset.h"

namespace shoal::data {

/// Reads `folder`: {train,t10k}-images-idx3-ubyte and {train,t10k}-labels-idx1-ubyte, with or without ".gz". Big-endian
/// headers: magic 0x803, images, rows, columns and magic 0x801, labels; then bytes. Source: http://yann.lecun.com/exdb/mnist,
/// "THE IDX FILE FORMAT"; https://github.com/zalandoresearch/fashion-mnist. Errors: not_found, system_error, or
/// invalid_argument naming the file and the fault.
Result<Dataset> read_fashion_mnist(const std::string& folder, Split split);

/// Writes `dataset` (one channel) as two gzip files in `folder`.
Status write_fashion_mnist(const Dataset& dataset, const std::string& folder, Split split);

}  // namespace shoal::data
