"""The networks of bench/train/models, written independently from the papers' tables: the reference of model_values_test.py.

Parameters and buffers come in the same order as in the C++ networks: a convolution, then its normalisation; the main path before the shortcut.
"""
import torch
from torch import nn
from torch.nn import functional as F


def conv_norm(inputs, outputs, side=3, stride=1, groups=1, bias=False, activation=None):
    layers = [nn.Conv2d(inputs, outputs, side, stride, side // 2, groups=groups, bias=bias), nn.BatchNorm2d(outputs)]
    return nn.Sequential(*layers, *([activation()] if activation else []))


class Head(nn.Module):
    """Mean over the image, then one linear layer."""

    def __init__(self, width, classes):
        super().__init__()
        self.linear = nn.Linear(width, classes)

    def forward(self, x):
        return self.linear(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Sum(nn.Module):
    """A path and a shortcut, added up."""

    def __init__(self, path, shortcut, activation):
        super().__init__()
        self.path, self.shortcut, self.activation = path, shortcut, activation

    def forward(self, x):
        return self.activation(self.path(x) + self.shortcut(x))


def vgg(depths, channels, classes):
    layers = []
    for depth, width in zip(depths, (64, 128, 256, 512, 512)):
        for _ in range(depth):
            layers.append(conv_norm(channels, width, bias=True, activation=nn.ReLU))
            channels = width
        layers.append(nn.MaxPool2d(2, ceil_mode=True))
    return nn.Sequential(*layers, Head(channels, classes))


def resnet(depths, bottleneck, channels, classes):
    layers = [conv_norm(channels, 64, activation=nn.ReLU)]
    inputs = 64
    for stage, depth in enumerate(depths):
        width = 64 << stage
        outputs = 4 * width if bottleneck else width
        for block in range(depth):
            stride = 2 if stage and not block else 1
            if bottleneck:
                path = nn.Sequential(conv_norm(inputs, width, 1, activation=nn.ReLU),
                                     conv_norm(width, width, 3, stride, activation=nn.ReLU), conv_norm(width, outputs, 1))
            else:
                path = nn.Sequential(conv_norm(inputs, width, 3, stride, activation=nn.ReLU), conv_norm(width, width))
            same = stride == 1 and inputs == outputs
            layers.append(Sum(path, nn.Identity() if same else conv_norm(inputs, outputs, 1, stride), F.relu))
            inputs = outputs
    return nn.Sequential(*layers, Head(inputs, classes))


def mobilenet_v2(channels, classes):
    layers = [conv_norm(channels, 32, activation=nn.ReLU6)]
    inputs = 32
    for factor, outputs, blocks, first_stride in ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
                                                  (6, 160, 3, 2), (6, 320, 1, 1)):
        for block in range(blocks):
            stride = 1 if block else first_stride
            inner = factor * inputs
            path = nn.Sequential(conv_norm(inputs, inner, 1, activation=nn.ReLU6),
                                 conv_norm(inner, inner, 3, stride, groups=inner, activation=nn.ReLU6),
                                 conv_norm(inner, outputs, 1))
            if stride == 1:
                shortcut = nn.Identity() if inputs == outputs else conv_norm(inputs, outputs, 1)
                path = Sum(path, shortcut, lambda x: x)
            layers.append(path)
            inputs = outputs
    return nn.Sequential(*layers, conv_norm(inputs, 1280, 1, activation=nn.ReLU6), Head(1280, classes))


class ShuffleUnit(nn.Module):
    def __init__(self, inputs, outputs, down):
        super().__init__()
        half, stride = outputs // 2, 2 if down else 1
        self.left = nn.Sequential(conv_norm(inputs, inputs, 3, 2, groups=inputs),
                                  conv_norm(inputs, half, 1, activation=nn.ReLU)) if down else None
        branch_inputs = inputs if down else inputs // 2
        self.right = nn.Sequential(conv_norm(branch_inputs, half, 1, activation=nn.ReLU),
                                   conv_norm(half, half, 3, stride, groups=half),
                                   conv_norm(half, half, 1, activation=nn.ReLU))

    def forward(self, x):
        if self.left is None:
            half = x.shape[1] // 2
            left, right = x[:, :half], self.right(x[:, half:])
        else:
            left, right = self.left(x), self.right(x)
        both = torch.cat([left, right], 1)
        n, c, h, w = both.shape
        return both.reshape(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def shufflenet_v2(widths, channels, classes):
    layers = [conv_norm(channels, 24, activation=nn.ReLU)]
    inputs = 24
    for width, units in zip(widths, (4, 8, 4)):
        for unit in range(units):
            layers.append(ShuffleUnit(inputs, width, down=unit == 0))
            inputs = width
    return nn.Sequential(*layers, conv_norm(inputs, widths[3], 1, activation=nn.ReLU), Head(widths[3], classes))


def norm_conv(inputs, outputs, side):
    return nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, outputs, side, padding=side // 2, bias=False))


class Dense(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.path = nn.Sequential(norm_conv(inputs, 128, 1), norm_conv(128, 32, 3))

    def forward(self, x):
        return torch.cat([self.path(x), x], 1)


def densenet121(channels, classes):
    layers = [nn.Conv2d(channels, 64, 3, padding=1, bias=False)]
    width = 64
    for depth in (6, 12, 24, 16):
        for _ in range(depth):
            layers.append(Dense(width))
            width += 32
        if depth != 16:
            layers += [norm_conv(width, width // 2, 1), nn.AvgPool2d(2)]
            width //= 2
    return nn.Sequential(*layers, nn.BatchNorm2d(width), nn.ReLU(), Head(width, classes))


def make(name, channels, classes):
    makers = {
        "vgg11": lambda *to: vgg((1, 1, 2, 2, 2), *to),
        "vgg13": lambda *to: vgg((2, 2, 2, 2, 2), *to),
        "vgg16": lambda *to: vgg((2, 2, 3, 3, 3), *to),
        "vgg19": lambda *to: vgg((2, 2, 4, 4, 4), *to),
        "resnet18": lambda *to: resnet((2, 2, 2, 2), False, *to),
        "resnet34": lambda *to: resnet((3, 4, 6, 3), False, *to),
        "resnet50": lambda *to: resnet((3, 4, 6, 3), True, *to),
        "mobilenet_v2": mobilenet_v2,
        "shufflenet_v2_x0.5": lambda *to: shufflenet_v2((48, 96, 192, 1024), *to),
        "shufflenet_v2_x1": lambda *to: shufflenet_v2((116, 232, 464, 1024), *to),
        "shufflenet_v2_x1.5": lambda *to: shufflenet_v2((176, 352, 704, 1024), *to),
        "shufflenet_v2_x2": lambda *to: shufflenet_v2((224, 488, 976, 2048), *to),
        "densenet121": densenet121,
    }
    return makers[name](channels, classes)
