"""The order in which ranks see images is that of PyTorch's DistributedSampler."""
import os
import subprocess

import pytest
from torch.utils.data import DistributedSampler

import support

PRINT_ORDER = os.path.join(support.BUILD, "bin", "test_torch_print_order")


def check(size, ranks, shuffle, seed, epoch):
    for rank in range(ranks):
        sampler = DistributedSampler(range(size), num_replicas=ranks, rank=rank, shuffle=shuffle, seed=seed)
        sampler.set_epoch(epoch)
        words = [PRINT_ORDER] + [str(int(value)) for value in (size, rank, ranks, shuffle, seed, epoch)]
        printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        assert [int(line) for line in printed.split()] == list(sampler), f"{words[1:]}"


@pytest.mark.parametrize("size, ranks", ((1, 1), (2, 1), (10, 2), (10, 3), (97, 4), (1000, 7), (50000, 2)))
def test_shuffled(size, ranks):
    check(size, ranks, True, seed=size, epoch=3)


def test_more_ranks_than_images():
    check(3, 8, True, seed=0, epoch=0)


def test_in_order():
    check(11, 4, False, seed=5, epoch=1)


@pytest.mark.parametrize("epoch", range(4))
def test_epochs_differ_in_the_same_way(epoch):
    check(64, 2, True, seed=9, epoch=epoch)


def test_large_seed():
    check(64, 2, True, seed=2**32 + 12345, epoch=1)
