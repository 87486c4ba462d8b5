// MobileNetV2 for small images.
#pragma once

#include <memory>

#include "bench/train/models/model.h"

namespace shoal::models {

/// A 3 x 3 convolution to 32 channels, 17 inverted residual blocks, a 1 x 1 convolution to 1280 channels, mean over the image,
/// one linear layer. A block widens by a 1 x 1 convolution, works depthwise, and narrows linearly. For small images the sides
/// are halved three times instead of five; a block that keeps the sides has a shortcut even where the channels change, through
/// a 1 x 1 convolution. Source: Sandler, Howard, Zhu, Zhmoginov, Chen, "MobileNetV2: inverted residuals and linear
/// bottlenecks", CVPR 2018, table 2.
std::shared_ptr<ImageClassifier> make_mobilenet_v2(int channels, int classes);

}  // namespace shoal::models
