"""Trains ResNet18 on CIFAR-10 with the same steps as `shoal_train --overlap backward --no-augment`. Only the name of the
backend differs from a script for Gloo. Start it with torchrun: train_resnet18.py FOLDER STEPS [BATCH [BACKEND]]"""
import sys
import time

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


def conv(inputs, outputs, side=3, stride=1):
    return nn.Sequential(nn.Conv2d(inputs, outputs, side, stride, side // 2, bias=False), nn.BatchNorm2d(outputs))


class Block(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1, self.conv2 = conv(inputs, width, 3, stride), conv(width, width)
        self.shortcut = nn.Identity() if stride == 1 and inputs == width else conv(inputs, width, 1, stride)

    def forward(self, x):
        return F.relu(self.conv2(F.relu(self.conv1(x))) + self.shortcut(x))


def resnet18():
    shapes = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
    model = nn.Sequential(conv(3, 64), nn.ReLU(), *[Block(*shape) for shape in shapes], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return model


folder, steps, batch, backend = (sys.argv[1:] + ["32", "shoal"][len(sys.argv) - 3:])[:4]
dist.init_process_group(backend)
torch.manual_seed(1)
model = nn.parallel.DistributedDataParallel(resnet18())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
records = torch.from_numpy(numpy.fromfile(folder + "/data_batch_1.bin", numpy.uint8).reshape(-1, 3073))
mean, deviation = (torch.tensor(v).view(3, 1, 1) for v in ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)))
sampler = torch.utils.data.DistributedSampler(records, seed=1)
began = time.perf_counter()
for step, rows in zip(range(int(steps)), torch.utils.data.DataLoader(records, int(batch), sampler=sampler)):
    loss = F.cross_entropy(model((rows[:, 1:].view(-1, 3, 32, 32) / 255 - mean) / deviation), rows[:, 0].long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss.detach_(), dist.ReduceOp.SUM)
    if dist.get_rank() == 0:
        rate = dist.get_world_size() * int(batch) * (step + 1) / (time.perf_counter() - began)
        print(f"step {step + 1}  loss {loss.item() / dist.get_world_size():.6f}  {rate:.1f} images/s", flush=True)
dist.destroy_process_group()
