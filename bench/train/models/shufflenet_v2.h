// ShuffleNetV2 for small images.
#pragma once

#include <memory>

#include "bench/train/models/model.h"

namespace shoal::models {

/// A 3 x 3 convolution to 24 channels, three stages of 4, 8 and 4 units, a 1 x 1 convolution, mean over the image, one linear
/// layer. A unit works on one half of the channels and passes on the other, then shuffles the two; the first unit of a stage
/// works on all channels in two branches and halves the sides. For small images the stem keeps the sides. Source: Ma, Zhang,
/// Zheng, Sun, "ShuffleNet V2: practical guidelines for efficient CNN architecture design", ECCV 2018, table 5; the width of
/// x2's first stage is 224, as is common in small-image versions.
std::shared_ptr<ImageClassifier> make_shufflenet_v2_x0_5(int channels, int classes);
std::shared_ptr<ImageClassifier> make_shufflenet_v2_x1(int channels, int classes);
std::shared_ptr<ImageClassifier> make_shufflenet_v2_x1_5(int channels, int classes);
std::shared_ptr<ImageClassifier> make_shufflenet_v2_x2(int channels, int classes);

}  // namespace shoal::models
