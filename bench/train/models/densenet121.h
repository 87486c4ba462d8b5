// DenseNet121 for small images.
#pragma once

#include <memory>

#include "bench/train/models/model.h"

namespace shoal::models {

/// A 3 x 3 convolution to 64 channels, four dense blocks of 6, 12, 24 and 16 layers with transitions between them that halve
/// channels and sides, batch normalisation, mean over the image, one linear layer. The input of every layer of a block is the
/// output of all layers before it; the layer adds 32 channels: normalise, 1 x 1 to 128 channels, normalise, 3 x 3. Source:
/// Huang, Liu, van der Maaten, Weinberger, "Densely connected convolutional networks", CVPR 2017, table 1 (DenseNet-BC,
/// growth rate 32), with the stem of its section 4 for small images.
std::shared_ptr<ImageClassifier> make_densenet121(int channels, int classes);

}  // namespace shoal::models
