// ResNet18 as it is used on 32 x 32 images.
#pragma once

#include <memory>

#include "torch_plugin/models/model.h"

namespace shoal::models {

/// A 3 x 3 convolution to 64 channels, four stages of two basic blocks (64, 128, 256, 512 channels, each stage but the first
/// halves the sides), mean over the image, one linear layer. Batch normalisation after every convolution, no biases but the
/// last. Source: He, Zhang, Ren, Sun, "Deep residual learning for image recognition", CVPR 2016 (section 4.2 for small images,
/// table 1 for the width and depth).
std::shared_ptr<ImageClassifier> make_resnet18(int channels, int classes);

}  // namespace shoal::models
