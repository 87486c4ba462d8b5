"""DistributedDataParallel over the backend "shoal" gives the weights of one process: buckets, unused and sparse gradients, c10d's Reducer
alone, communication hooks of the user and of PyTorch."""
import re
import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from ranks import check, expect, run_ranks

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
                parameter.add_(1)  # DDP must broadcast rank 0's weights
    part = IMAGES // size
    train(DistributedDataParallel(model, **options), slice(rank * part, (rank + 1) * part))
    return [parameter.detach().numpy() for parameter in model.parameters()]


class TwoHeads(torch.nn.Module):
    """A network with two heads, of which the second one may be unused."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(SEED)
        self.body = torch.nn.Linear(6, 8).double()
        self.heads = torch.nn.ModuleList(torch.nn.Linear(8, 3).double() for _ in range(2))

    def forward(self, given, both):
        hidden = self.body(given).relu()
        return self.heads[0](hidden), self.heads[1](hidden) if both else None


def inputs(rank, size, step):
    """The same rows for any number of ranks: a share of 12."""
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randn(12, 6, generator=generator, dtype=torch.float64)[12 * rank // size: 12 * (rank + 1) // size]


def ignored_output(rank, size):
    """An unused head gets no gradient; all other gradients are those of one process."""
    for both, options in ((True, {"find_unused_parameters": True}), (False, {"find_unused_parameters": True}), (True, {})):
        model = DistributedDataParallel(TwoHeads(), **options)
        alone = TwoHeads()
        for step in range(4):
            for net, share in ((model, inputs(rank, size, step)), (alone, inputs(0, 1, step))):
                net.zero_grad()
                first, second = net(share, both)
                loss = first.square().mean() + (0 if options or second is None else 0 * second.sum())
                loss.backward()
            for found, wanted in zip(model.module.parameters(), alone.parameters()):
                if wanted.grad is None:  # unused on all ranks: DDP leaves the gradient as it was
                    check(found.grad is None or not found.grad.any(), "an unused parameter has a gradient")
                else:
                    torch.testing.assert_close(found.grad, wanted.grad)


def sparse_gradients(rank, size, as_view):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(SEED)
            self.table = torch.nn.EmbeddingBag(10, 4, sparse=True)
            self.head = torch.nn.Linear(4, 1)

        def forward(self, words):
            return self.head(self.table(words))

    words = torch.randint(10, (6 * size, 3), generator=torch.Generator().manual_seed(SEED))
    model, alone = DistributedDataParallel(Net(), gradient_as_bucket_view=as_view), Net()
    for _ in range(3):
        model.zero_grad()
        alone.zero_grad()
        model(words[6 * rank: 6 * (rank + 1)]).square().mean().backward()
        alone(words).square().mean().backward()
        check(model.module.table.weight.grad.is_sparse, "the table's gradient is sparse")
        for found, wanted in zip(model.parameters(), alone.parameters()):
            torch.testing.assert_close(found.grad.to_dense(), wanted.grad.to_dense())


def hooks(rank, size):
    """Hooks that chain callbacks, a hook that waits in a callback, a hook without a future, and invalid hooks."""
    share = inputs(rank, size, 0)
    alone = TwoHeads()
    alone(inputs(0, 1, 0), True)[0].square().mean().backward()
    world = dist.group.WORLD

    def chained(state, bucket):
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / size).then(lambda done: done.value() * 1)

    def waiting(state, bucket):
        """Computes the mean with two more calls, for which the callback of the first call waits."""
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()

        def again(done):
            mean = done.value()[0] / size
            whole = dist.all_reduce(mean.clone(), async_op=True).get_future().wait()[0]
            other = mean.clone()
            dist.all_reduce(other)  # a blocking call
            return 2 * mean - (whole + other) / (2 * size)

        return future.then(again)

    for hook in (chained, waiting, default_hooks.allreduce_hook):
        model = DistributedDataParallel(TwoHeads())
        model.register_comm_hook(None, hook)
        for _ in range(3):
            model.zero_grad()
            result = model(share, True)
            (result[0].square().mean() + 0 * result[1].sum()).backward()
        for found, wanted in zip(model.parameters(), alone.parameters()):
            torch.testing.assert_close(found.grad, torch.zeros_like(found) if wanted.grad is None else wanted.grad)
    expect(RuntimeError, "register_comm_hook.*once", lambda: model.register_comm_hook(None, chained))
    expect(TypeError, "callable", lambda: DistributedDataParallel(TwoHeads()).register_comm_hook(None, 1))

    def no_future(state, bucket):
        return bucket.buffer()

    model = DistributedDataParallel(TwoHeads())
    model.register_comm_hook(None, no_future)
    expect(RuntimeError, "Future", lambda: sum(output.sum() for output in model(share, True)).backward())
    dist.barrier(group=world)


def compressed(rank, size):
    """PowerSGD, whose callbacks wait for two more calls. Returns the losses and the final weights."""
    torch.manual_seed(SEED)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(24, 24), torch.nn.ReLU(), torch.nn.Linear(24, 4)))
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    given = torch.randn(16, 24, generator=torch.Generator().manual_seed(rank))
    for _ in range(12):
        optimizer.zero_grad()
        loss = (model(given) - given[:, :4]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [parameter.detach().numpy() for parameter in model.parameters()]


def reducer(rank, size):
    """c10d's Reducer without DDP: one bucket, and a bucket for each type."""
    for per_type in (False, True):
        model = TwoHeads()
        if per_type:
            model.heads.float()
        parameters = list(model.parameters())
        buckets = [[0, 1], [2, 3, 4, 5]] if per_type else [list(range(6))]
        driver = dist.Reducer(parameters, buckets, [1 << 20] * len(buckets), dist.group.WORLD)
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        for step in range(3):
            hidden = model.body(inputs(rank, size, step)).relu().to(model.heads[0].weight.dtype)
            result = model.heads[0](hidden).square().mean() + model.heads[1](hidden).mean()
            optimizer.zero_grad()
            driver.prepare_for_backward([result])
            result.backward()
            optimizer.step()
        sums = [parameter.detach().clone() for parameter in parameters]
        for whole, parameter in zip(sums, parameters):
            dist.all_reduce(whole)
            torch.testing.assert_close(whole / size, parameter.detach())
            check(parameter.grad.abs().sum() > 0, "there was a gradient")


def other_buckets(rank, size):
    """(error message, seconds) with smaller buckets on the last rank. find_unused_parameters keeps DDP's first buckets; otherwise all ranks
    would take those of rank 0 after the first step."""
    options = {"bucket_cap_mb": 0.01} if rank == size - 1 else {}
    model = DistributedDataParallel(network(), find_unused_parameters=True, **options)
    images, labels = batches()[0]
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    dist.barrier()
    start = time.monotonic()
    try:
        loss.backward()
    except RuntimeError as error:
        return str(error), time.monotonic() - start
    raise AssertionError("gradients of different layouts were summed")


def check_training(size, **options):
    alone = network()
    train(alone, slice(None))
    for parameters in run_ranks(size, train_as_rank, options):
        for found, expected in zip(parameters, alone.parameters()):
            torch.testing.assert_close(torch.from_numpy(found), expected.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", (1, 2, 3, 4))
def test_default_buckets(size):
    check_training(size)


def test_small_buckets_that_overlap():
    check_training(3, bucket_cap_mb=0.01)


def test_gradients_as_views():
    check_training(2, gradient_as_bucket_view=True, bucket_cap_mb=0.02)


def test_unused_parameters():
    check_training(2, find_unused_parameters=True)


def test_static_graph():
    check_training(2, static_graph=True)


def test_ignored_outputs():
    run_ranks(2, ignored_output)


@pytest.mark.parametrize("as_view", (False, True))
def test_sparse_gradients(as_view):
    run_ranks(2, sparse_gradients, as_view)


def test_reducer():
    run_ranks(3, reducer)


def test_communication_hooks():
    run_ranks(2, hooks)


@pytest.mark.parametrize("size", (2, 3))
def test_different_buckets_are_a_mismatch(size):
    for message, seconds in run_ranks(size, other_buckets):
        calls = set(re.findall(r"all_reduce float64 x \d+", message))
        assert len(calls) == 2, f"not the two calls that differ: {message}"
        assert f"rank {size - 1}" in message
        assert re.search(r"rank [01]\b", message), message
        assert seconds < 1


def test_powersgd_trains_equal_weights():
    """The loss falls, and all ranks have the same weights."""
    ours = run_ranks(2, compressed)
    for losses, _ in ours:
        assert losses[-1] < 0.8 * losses[0]
    for first, second in zip(ours[0][1], ours[1][1]):
        torch.testing.assert_close(torch.from_numpy(first), torch.from_numpy(second), rtol=0, atol=0)
