// Residual networks in their variants for small images.
#pragma once

#include <memory>

#include "bench/train/models/model.h"

namespace shoal::models {

/// A 3 x 3 convolution to 64 channels, four stages of blocks (64, 128, 256, 512 channels, each stage but the first halves the
/// sides), mean over the image, one linear layer. Batch normalisation after every convolution, no biases except in the linear
/// layer. ResNet18 and 34 have blocks of two 3 x 3 convolutions; ResNet50 of a 1 x 1, a 3 x 3 and a 1 x 1 with four times as
/// many output channels. Source: He, Zhang, Ren, Sun, "Deep residual learning for image recognition", CVPR 2016 (section 4.2
/// for small images, table 1 for widths and depths).
std::shared_ptr<ImageClassifier> make_resnet18(int channels, int classes);
std::shared_ptr<ImageClassifier> make_resnet34(int channels, int classes);
std::shared_ptr<ImageClassifier> make_resnet50(int channels, int classes);

}  // namespace shoal::models
