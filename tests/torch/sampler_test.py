"""The order of the ranks' images is that of PyTorch's DistributedSampler."""
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
def test_shuffled_order_matches_pytorch(size, ranks):
    check(size, ranks, True, seed=size, epoch=3)


def test_more_ranks_than_images_match_pytorch():
    check(3, 8, True, seed=0, epoch=0)


def test_unshuffled_order_matches_pytorch():
    check(11, 4, False, seed=5, epoch=1)


@pytest.mark.parametrize("epoch", range(4))
def test_epochs_match_pytorch(epoch):
    check(64, 2, True, seed=9, epoch=epoch)


def test_large_seeds_match_pytorch():
    check(64, 2, True, seed=2**32 + 12345, epoch=1)
