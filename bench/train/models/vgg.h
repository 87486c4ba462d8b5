// VGG with batch normalisation, for small images.
#pragma once

#include <memory>

#include "bench/train/models/model.h"

namespace shoal::models {

/// Five stages of 3 x 3 convolutions (64, 128, 256, 512, 512 channels) with biases, batch normalisation and ReLU, each stage
/// followed by a pooling that halves the sides; one linear layer. The number counts the layers of the original, which has three
/// linear ones. Source: Simonyan, Zisserman, "Very deep convolutional networks for large-scale image recognition", ICLR 2015,
/// table 1; batch normalisation: Ioffe, Szegedy, ICML 2015.
std::shared_ptr<ImageClassifier> make_vgg11(int channels, int classes);
std::shared_ptr<ImageClassifier> make_vgg13(int channels, int classes);
std::shared_ptr<ImageClassifier> make_vgg16(int channels, int classes);
std::shared_ptr<ImageClassifier> make_vgg19(int channels, int classes);

}  // namespace shoal::models
