"""DistributedDataParallel over the backend "shoal" trains as one process does."""
import unittest

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import cases
from ranks import run_ranks

STEPS = 5
IMAGES = 24  # divides by 1, 2, 3 and 4
SEED = 3


def network():
    torch.manual_seed(SEED)
    layers = (torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 3, stride=2), torch.nn.ReLU(),
              torch.nn.Flatten(), torch.nn.Linear(32 * 7 * 7, 10))
    return torch.nn.Sequential(*layers).double()


def batches():
    generator = torch.Generator().manual_seed(SEED)
    return [(torch.randn(IMAGES, 3, 16, 16, generator=generator, dtype=torch.float64),
             torch.randint(10, (IMAGES,), generator=generator))
            for _ in range(STEPS)]


def train(model, share):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for images, labels in batches():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images[share]), labels[share]).backward()
        optimizer.step()


def train_as_rank(rank, size, options):
    torch.manual_seed(rank)
    model = network()
    if rank > 0:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)  # the start must come from rank 0
    part = IMAGES // size
    train(DistributedDataParallel(model, **options), slice(rank * part, (rank + 1) * part))
    return [parameter.detach().numpy() for parameter in model.parameters()]


class Ddp(unittest.TestCase):
    def check(self, size, **options):
        alone = network()
        train(alone, slice(None))
        for parameters in run_ranks(size, train_as_rank, options):
            for found, expected in zip(parameters, alone.parameters()):
                torch.testing.assert_close(torch.from_numpy(found), expected.detach(), rtol=1e-10, atol=1e-12)

    def test_default_buckets(self):
        for size in (1, 2, 3, 4):
            with self.subTest(ranks=size):
                self.check(size)

    def test_small_buckets_that_overlap(self):
        self.check(3, bucket_cap_mb=0.01)

    def test_gradients_as_views(self):
        self.check(2, gradient_as_bucket_view=True, bucket_cap_mb=0.02)

    def test_unused_parameters(self):
        self.check(2, find_unused_parameters=True)

    def test_static_graph(self):
        self.check(2, static_graph=True)


if __name__ == "__main__":
    cases.main()
