"""The order in which ranks see images is that of PyTorch's DistributedSampler."""
import os
import subprocess
import unittest

from torch.utils.data import DistributedSampler

import cases

PRINT_ORDER = os.path.join(cases.BUILD, "bin", "test_torch_print_order")


class Sampler(unittest.TestCase):
    def check(self, size, ranks, shuffle, seed, epoch):
        for rank in range(ranks):
            sampler = DistributedSampler(range(size), num_replicas=ranks, rank=rank, shuffle=shuffle, seed=seed)
            sampler.set_epoch(epoch)
            words = [PRINT_ORDER] + [str(int(value)) for value in (size, rank, ranks, shuffle, seed, epoch)]
            printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
            self.assertEqual([int(line) for line in printed.split()], list(sampler), f"{words[1:]}")

    def test_shuffled(self):
        for size, ranks in ((1, 1), (2, 1), (10, 2), (10, 3), (97, 4), (1000, 7), (50000, 2)):
            self.check(size, ranks, True, seed=size, epoch=3)

    def test_more_ranks_than_images(self):
        self.check(3, 8, True, seed=0, epoch=0)

    def test_in_order(self):
        self.check(11, 4, False, seed=5, epoch=1)

    def test_epochs_differ_in_the_same_way(self):
        for epoch in range(4):
            self.check(64, 2, True, seed=9, epoch=epoch)

    def test_large_seed(self):
        self.check(64, 2, True, seed=2**32 + 12345, epoch=1)


if __name__ == "__main__":
    cases.main()
