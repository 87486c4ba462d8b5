// A data set for machines without one: small, learnable, the same every time.
#pragma once

#include <cstdint>

#include "bench/train/data/dataset.h"

namespace shoal::data {

/// `images` images of `channels` x `side` x `side` pixels in 10 classes. Every class has a smooth pattern of its own; an
/// image is that pattern, shifted, with another contrast and added noise. A network learns it, a linear model only in part.
/// The name in the result is "synthetic"; mean and deviation are 0.5 and 0.25.
Dataset make_synthetic(std::size_t images, int channels, int side, std::uint64_t seed);

}  // namespace shoal::data
