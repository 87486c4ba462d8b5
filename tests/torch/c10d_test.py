"""The checks of c10d's own tests for Gloo, on this backend: bad calls are refused and leave the group usable; empty tensors; many
outstanding calls; groups made by their members alone; registration.

Each bad call is also made on a Gloo group of the same process: it must raise the same kind of exception with a similar message."""
import re
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, AllToAllOptions, ReduceScatterOptions

import shoal
from ranks import check, expect, run_ranks

CPU = torch.device("cpu")


def backend(group=None):
    return (group or dist.group.WORLD)._get_backend(CPU)


def options(kind, **fields):
    made = kind()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def rooted(kind, root, tensor=0):
    made = options(kind, rootRank=root)
    if tensor:
        made.rootTensor = tensor
    return made


def bad_calls(rank, size):
    """Two lists of (what, pattern, call on a backend): for both backends, with a pattern from Gloo's message, and for this backend only. Every
    rank makes all calls; none may start an operation."""
    one, two = torch.ones(1), torch.ones(2)
    other = torch.ones(1, dtype=torch.int64)
    rows = torch.eye(2).to_sparse_csr()
    meta = torch.ones(1, device="meta")
    reduce, broadcast, all_reduce = dist.ReduceOptions, dist.BroadcastOptions, dist.AllreduceOptions
    coalesced = dist.AllreduceCoalescedOptions()
    calls = []

    def add(what, pattern, call):
        calls.append((what, pattern, call))

    for root in (-1, size):
        add(f"broadcast from {root}", "invalid root rank", lambda g, r=root: g.broadcast([one], rooted(broadcast, r)))
        add(f"reduce to {root}", "invalid root rank", lambda g, r=root: g.reduce([one], rooted(reduce, r)))
        add(f"gather to {root}", "invalid root rank", lambda g, r=root: g.gather([], [one], rooted(dist.GatherOptions, r)))
        add(f"scatter from {root}", "invalid root rank", lambda g, r=root: g.scatter([one], [], rooted(dist.ScatterOptions, r)))
    add("broadcast of another tensor", "invalid root tensor", lambda g: g.broadcast([one], rooted(broadcast, 0, 1)))
    add("reduce of another tensor", "invalid root tensor", lambda g: g.reduce([one], rooted(reduce, 0, 1)))

    add("all_reduce of nothing", "requires non-empty tensor list", lambda g: g.allreduce([], all_reduce()))
    add("all_reduce of two types", "tensor", lambda g: g.allreduce([one, other], all_reduce()))
    add("all_reduce of two sizes", "tensor", lambda g: g.allreduce([one, two], all_reduce()))
    add("coalesced all_reduce of nothing", "requires non-empty tensor list", lambda g: g.allreduce_coalesced([], coalesced))
    add("coalesced all_reduce of two types", "type", lambda g: g.allreduce_coalesced([one, other], coalesced))
    add("all_reduce of compressed rows", "", lambda g: g.allreduce([rows], all_reduce()))
    add("all_reduce on a device of no backend", "", lambda g: g.allreduce([meta], all_reduce()))
    add("bits of floats", "", lambda g: g.allreduce([one], options(all_reduce, reduceOp=dist.ReduceOp.BAND)))

    add("all_gather of nothing", "tensor list", lambda g: g.allgather([[one] * size], [], AllgatherOptions()))
    add("all_gather into nothing", "list", lambda g: g.allgather([], [one], AllgatherOptions()))
    add("all_gather into too few", "list", lambda g: g.allgather([[one] * (size - 1)], [one], AllgatherOptions()))
    add("all_gather into too many", "list", lambda g: g.allgather([[one] * (size + 1)], [one], AllgatherOptions()))
    add("all_gather of two types", "invalid tensor type",
        lambda g: g.allgather([[one] * (size - 1) + [other]], [one], AllgatherOptions()))
    add("all_gather into another size", "invalid tensor size",
        lambda g: g.allgather([[two] * size], [one], AllgatherOptions()))
    add("coalesced all_gather of nothing", "requires non-empty input tensor list",
        lambda g: g.allgather_coalesced([[one]] * size, [], AllgatherOptions()))
    add("coalesced all_gather into too few lists", "output lists should be equal to world size",
        lambda g: g.allgather_coalesced([[one]] * (size - 1), [one], AllgatherOptions()))
    add("coalesced all_gather into too short a list", "invalid output size",
        lambda g: g.allgather_coalesced([[one]] * (size - 1) + [[]], [one], AllgatherOptions()))
    add("coalesced all_gather of two types", "invalid tensor type",
        lambda g: g.allgather_coalesced([[other]] * size, [one], AllgatherOptions()))

    to_this, to_next = rooted(dist.GatherOptions, rank), rooted(dist.GatherOptions, (rank + 1) % size)
    add("gather of nothing", "tensor list", lambda g: g.gather([], [], rooted(dist.GatherOptions, 0)))
    add("gather of two", "tensor list", lambda g: g.gather([], [one, one], rooted(dist.GatherOptions, 0)))
    add("gather at the root into nothing", "output list", lambda g: g.gather([], [one], to_this))
    add("gather at the root into two lists", "output list", lambda g: g.gather([[one] * size] * 2, [one], to_this))
    add("gather at the root into too few", "incorrect output list size", lambda g: g.gather([[one] * (size - 1)], [one], to_this))
    add("gather of two types", "invalid tensor type", lambda g: g.gather([[one] * (size - 1) + [other]], [one], to_this))
    add("gather into another size", "invalid tensor size", lambda g: g.gather([[two] * size], [one], to_this))
    from_this, from_next = rooted(dist.ScatterOptions, rank), rooted(dist.ScatterOptions, (rank + 1) % size)
    add("scatter into nothing", "tensor list", lambda g: g.scatter([], [], rooted(dist.ScatterOptions, 0)))
    add("scatter into two", "tensor list", lambda g: g.scatter([one, one], [], rooted(dist.ScatterOptions, 0)))
    add("scatter at the root of nothing", "input list", lambda g: g.scatter([one], [], from_this))
    add("scatter at the root of two lists", "input list", lambda g: g.scatter([one], [[one] * size] * 2, from_this))
    add("scatter at the root of too many", "incorrect input list size",
        lambda g: g.scatter([one], [[one] * (size + 1)], from_this))
    add("scatter of two types", "invalid tensor type", lambda g: g.scatter([one], [[one] * (size - 1) + [other]], from_this))
    add("scatter of another size", "invalid tensor size", lambda g: g.scatter([one], [[two] * size], from_this))
    if size > 1:
        add("gather elsewhere with a list", "requires empty output on non-root", lambda g: g.gather([[one] * size], [one], to_next))
        add("scatter elsewhere with a list", "requires empty input on non-root",
            lambda g: g.scatter([one], [[one] * size], from_next))

    negative = timedelta(seconds=-1)
    add("all_to_all of too few", "", lambda g: g.alltoall([one], [one] * (size + 1), AllToAllOptions()))
    add("splits of another sum", "split", lambda g: g.alltoall_base(one.clone(), one, [2] * size, [1] * size, AllToAllOptions()))
    add("uneven all_to_all", "", lambda g: g.alltoall_base(torch.ones(2 * size + 1), torch.ones(2 * size + 1), [], [],
                                                         AllToAllOptions()) if size > 1 else g.allreduce([], all_reduce()))
    next_rank = (rank + 1) % size
    return calls, [("a negative timeout", "timeout .*-1000 ms", lambda g: g.allreduce([one], options(all_reduce, timeout=negative))),
                   ("reduce_scatter of too few", "reduce_scatter: .*input list size",
                    lambda g: g.reduce_scatter([one], [[one] * (size + 1)], ReduceScatterOptions())),
                   ("reduce_scatter of two types", "reduce_scatter: .*invalid tensor type",
                    lambda g: g.reduce_scatter([one], [[one] * (size - 1) + [other]] if size > 1 else [[other]], ReduceScatterOptions())),
                   ("reduce_scatter_tensor of too many", "reduce_scatter_tensor: .*same size",
                    lambda g: g._reduce_scatter_base(one, torch.ones(size + 1))),
                   ("all_gather_into_tensor of too many", "all_gather_into_tensor: .*tensor size",
                    lambda g: g._allgather_base(torch.ones(size + 1), one)),
                   ("send to no rank of the group", rf"send: .*\b{size}\b", lambda g: g.send([one], size, 0)),
                   ("send to itself", rf"send: .*\brank {rank}\b", lambda g: g.send([one], rank, 0)),
                   ("recv from no rank of the group", "recv: .*-2", lambda g: g.recv([one], -2, 0)),
                   ("send of nothing", "send: .*empty tensor list", lambda g: g.send([], next_rank, 0)),
                   ("send of two", r"send: .*single-element.*\b2\b", lambda g: g.send([one, one], next_rank, 0)),
                   ("send of compressed rows", "send: .*dense", lambda g: g.send([rows], next_rank, 0)),
                   ("broadcast of a sparse tensor", "broadcast: .*dense", lambda g: g.broadcast([torch.eye(2).to_sparse()], broadcast())),
                   ("a negative timeout of the group", "set_timeout: .*-1000 ms", lambda g: g.set_timeout(negative))]


def raised(call, group):
    try:
        call(group)
    except Exception as error:  # noqa: BLE001  (the caller checks its kind)
        return error
    return None


def refusals(rank, size):
    gloo = backend(dist.new_group(backend="gloo"))
    for_both, for_shoal = bad_calls(rank, size)
    wrong = []
    for what, pattern, call in for_both + for_shoal:
        ours = raised(call, backend())
        if ours is None:
            wrong.append(f"{what}: no error")
            continue
        if not isinstance(ours, ValueError) or not re.search(pattern, str(ours).lower()):
            wrong.append(f"{what}: {type(ours).__name__}, no match of {pattern!r} in {ours}")
    for what, pattern, call in for_both:
        theirs = raised(call, gloo)
        # Gloo accepts several tensors a rank of one size; and some of its checks are internal ones, with RuntimeError.
        if theirs is not None and not isinstance(theirs, (ValueError, RuntimeError)):
            wrong.append(f"{what}: Gloo raises {type(theirs).__name__}")
        if isinstance(theirs, ValueError) and not re.search(pattern, str(theirs).lower()):
            wrong.append(f"{what}: no match of {pattern!r} in Gloo's {theirs}")
    check(not wrong, "\n".join(wrong))
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    check(torch.equal(tensor, torch.full((3,), float(size))), "the group is still usable")


def refusals_by_torch(rank, size):
    """Calls that torch.distributed refuses, and calls on a group without this rank, do not reach the backend."""
    one = torch.ones(1)
    pair = dist.new_group([0, 1])
    if rank == 2:
        check(dist.get_rank(pair) == -1, "rank 2 is in no pair")
        before = torch.ones(1)
        check(dist.all_reduce(before, group=pair) is None and before.item() == 1, "a call on a group without this rank does nothing")
    else:
        expect(ValueError, "not part of group", lambda: dist.broadcast(one, src=2, group=pair))
        dist.barrier(group=pair)
    mixed = [torch.ones(1)] * (size - 1) + [torch.ones(1).int()]
    expect(ValueError, "different dtypes", lambda: dist.all_gather(mixed, one))
    expect(ValueError, "complex tensors", lambda: dist.all_reduce(torch.ones(1, dtype=torch.cfloat), op=dist.ReduceOp.MAX))
    expect(TypeError, "timedelta", lambda: dist.new_group(timeout=-1))
    expect(ValueError, "new_group: .*-5000 ms", lambda: dist.new_group(timeout=timedelta(seconds=-5)))
    dist.all_reduce(one)
    check(one.item() == size, "the group is still usable")
    world = dist.group.WORLD
    dist.destroy_process_group()
    expect(ValueError, "has not been initialized", lambda: dist.all_reduce(one))
    expect(RuntimeError, "destroyed", lambda: world._get_backend(CPU).allreduce([one], dist.AllreduceOptions()))


def mismatches(rank, size):
    """Ranks that disagree: each gets an error that names both ranks. Every case has its own group, and the error closes only that group."""
    def tensor(count, dtype=torch.float32):
        return torch.ones(count, dtype=dtype)

    mine = rank == 0
    for large in (1, 20_000):
        more = large + 1
        n = more if mine else large
        cases_of = {
            "all_reduce of other counts": lambda g: dist.all_reduce(tensor(n), group=g),
            "all_reduce of other types": lambda g: dist.all_reduce(tensor(large, torch.int32 if mine else torch.float32), group=g),
            "all_reduce with another operation":
                lambda g: dist.all_reduce(tensor(large), op=dist.ReduceOp.MAX if mine else dist.ReduceOp.SUM, group=g),
            "broadcast of other counts": lambda g: dist.broadcast(tensor(n), src=0, group=g),
            "broadcast from another root": lambda g: dist.broadcast(tensor(large), src=0 if mine else 1, group=g),
            "reduce of other counts": lambda g: dist.reduce(tensor(n), dst=0, group=g),
            "all_gather of other counts": lambda g: dist.all_gather([tensor(n) for _ in range(size)], tensor(n), group=g),
            "reduce_scatter of other counts": lambda g: dist.reduce_scatter_tensor(tensor(n), tensor(size * n), group=g),
            "gather of other counts":
                lambda g: dist.gather(tensor(n), [tensor(n) for _ in range(size)] if rank == 0 else None, dst=0, group=g),
            "scatter of other counts":
                lambda g: dist.scatter(tensor(n), [tensor(n) for _ in range(size)] if rank == 0 else None, src=0, group=g),
            "another call": lambda g: dist.all_reduce(tensor(large), group=g) if mine else dist.broadcast(tensor(large), 1, group=g),
            "messages of other counts":
                lambda g: dist.send(tensor(large), 1, group=g) if mine else dist.recv(tensor(more), 0, group=g),
        }
        for what, call in cases_of.items():
            group = dist.new_group()

            def call_and_barrier(call=call, group=group):
                call(group)
                dist.barrier(group=group)  # a rank that only sends in a call does not wait for the others

            try:
                call_and_barrier()
            except dist.DistBackendError as error:
                text = str(error)
                check("rank 0" in text and "rank 1" in text, f"{what}, {large}: not both ranks in {text}")
            else:
                raise AssertionError(f"{what}, {large}: no error")
    total = tensor(2)
    dist.all_reduce(total)
    check(torch.equal(total, torch.full((2,), float(size))), "other groups are still open")


def empty(rank, size):
    nothing = [torch.ones(0, 3) for _ in range(size)]
    dist.all_reduce(nothing[0])
    dist.broadcast(nothing[0], src=size - 1)
    dist.reduce(nothing[0], dst=0)
    dist.all_gather(nothing, torch.ones(0, 3))
    dist.all_gather_into_tensor(torch.ones(0, 3), torch.ones(0, 3))
    dist.reduce_scatter(nothing[0], nothing)
    dist.reduce_scatter_tensor(torch.ones(0), torch.ones(0))
    dist.gather(nothing[0], nothing if rank == 0 else None, dst=0)
    dist.scatter(nothing[0], nothing if rank == 0 else None, src=0)
    dist.all_to_all_single(torch.ones(0), torch.ones(0))
    dist.all_to_all(nothing, [torch.ones(0, 3) for _ in range(size)])
    dist.all_reduce_coalesced([torch.ones(0), torch.ones(2)])
    if size > 1:
        works = [dist.isend(torch.ones(0), (rank + 1) % size), dist.irecv(torch.ones(0), (rank - 1) % size)]
        for work in works:
            work.wait()
    check(all(tensor.shape == (0, 3) for tensor in nothing), "shapes are as they were")


def outstanding(rank, size, calls_in_flight):
    """So many calls of each kind in flight, waited for in the opposite order."""
    total = size * (size - 1) / 2

    def each(make, verify):
        calls = [make(i) for i in range(calls_in_flight)]
        for i in reversed(range(calls_in_flight)):
            calls[i][0].wait()
        for i, (_, result) in enumerate(calls):
            verify(i, result)

    def started(make, result):
        return lambda i: (lambda held: (make(i, held), held))(result(i))

    def equal(kind, wanted):
        def verify(i, result):
            found = torch.stack(result) if isinstance(result, list) else result
            expected = torch.as_tensor(wanted(i), dtype=torch.float32)
            check(torch.equal(found.flatten(), expected.expand_as(found).flatten()), f"{kind} {i}: {found} is not {expected}")
        return verify

    def column(start):
        return torch.arange(float(size))[:, None] + start

    each(started(lambda i, t: dist.all_reduce(t, async_op=True), lambda i: torch.full((3,), float(rank + i))),
         equal("all_reduce", lambda i: total + size * i))
    each(started(lambda i, t: dist.all_reduce_coalesced([t], async_op=True), lambda i: torch.full((3,), float(rank + i))),
         equal("coalesced all_reduce", lambda i: total + size * i))
    each(started(lambda i, t: dist.broadcast(t, src=i % size, async_op=True), lambda i: torch.full((3,), float(rank + i))),
         equal("broadcast", lambda i: i % size + i))
    each(started(lambda i, t: dist.reduce(t, dst=i % size, async_op=True), lambda i: torch.full((3,), float(rank + i))),
         equal("reduce", lambda i: total + size * i if i % size == rank else rank + i))
    each(started(lambda i, t: dist.all_gather(t, torch.full((2,), float(rank + i)), async_op=True),
                 lambda i: [torch.zeros(2) for _ in range(size)]), equal("all_gather", column))
    each(started(lambda i, t: dist.reduce_scatter_tensor(t, torch.full((2 * size,), float(rank + i)), async_op=True),
                 lambda i: torch.zeros(2)), equal("reduce_scatter", lambda i: total + size * i))
    each(started(lambda i, t: dist.scatter(t, list(torch.arange(2.0 * size).view(size, 2) + i) if i % size == rank else None,
                                           src=i % size, async_op=True), lambda i: torch.zeros(2)),
         equal("scatter", lambda i: torch.tensor([2.0 * rank, 2.0 * rank + 1]) + i))
    each(started(lambda i, t: dist.all_to_all_single(t, torch.arange(float(size)) + size * rank + i, async_op=True),
                 lambda i: torch.zeros(size)), equal("all_to_all", lambda i: torch.arange(float(size)) * size + rank + i))
    gathers = []
    for i in range(calls_in_flight):
        parts = [torch.zeros(2) for _ in range(size)] if i % size == rank else None
        gathers.append((dist.gather(torch.full((2,), float(rank + i)), parts, dst=i % size, async_op=True), parts))
    for i, (work, parts) in enumerate(gathers):
        work.wait()
        if parts is not None:
            equal("gather", column)(i, parts)


def all_with_all(rank, size):
    """Every rank starts sends to all others, then receives from all others, then waits."""
    works, got = [], {}
    for peer in range(size):
        if peer != rank:
            works.append(dist.isend(torch.full((5,), float(10 * rank + peer)), peer))
    for peer in range(size):
        if peer != rank:
            got[peer] = torch.zeros(5)
            works.append(dist.irecv(got[peer], peer))
    for work in works:
        work.wait()
    for peer, tensor in got.items():
        check(torch.equal(tensor, torch.full((5,), float(10 * peer + rank))), f"from {peer}")


def barrier_after_calls(rank, size):
    """Calls started before a barrier have ended on all ranks when the barrier returns."""
    tensors = [torch.full((1000,), float(rank)) for _ in range(100)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    dist.barrier()
    for i in reversed(range(100)):
        works[i].wait()
        check(torch.equal(tensors[i], torch.full((1000,), size * (size - 1) / 2)), f"call {i}")


def made_by_members(rank, size):
    """new_group(use_local_synchronization=True): only members call it, and two groups of the same ranks are two."""
    ranks = [1, 3]
    if rank in ranks:
        first = dist.new_group(ranks, use_local_synchronization=True)
        second = dist.new_group(ranks, use_local_synchronization=True)
        check(dist.get_process_group_ranks(first) == ranks and first is not second, "two groups")
        tensors = [torch.full((4,), float(rank)), torch.full((4,), float(10 * rank))]
        order = (0, 1) if rank == 1 else (1, 0)  # their calls are independent of each other
        works = [dist.all_reduce(tensors[i], group=(first, second)[i], async_op=True) for i in order]
        for work in works:
            work.wait()
        check([tensor[0].item() for tensor in tensors] == [4, 40], f"sums {tensors}")
    else:
        check(dist.new_group(ranks, use_local_synchronization=True) in (None, dist.GroupMember.NON_GROUP_MEMBER), "not a member")
    dist.barrier()


def made_outside_of_c10d(rank, size):
    """Two groups, one after the other, each with its own store, as torchft makes them."""
    world = dist.distributed_c10d._get_default_store()
    for round_ in range(2):
        group = shoal.process_group(dist.PrefixStore(f"outside{round_}", world), rank, size, timedelta(seconds=20))
        check((group.rank(), group.size()) == (rank, size), "rank and size")
        tensor = torch.tensor([float(rank)])
        group.allreduce([tensor], dist.ReduceOp.SUM).wait()
        check(tensor.item() == sum(range(size)), "sum")
        group.barrier().wait()
        group.abort()


def registered(rank, size):
    check(dist.is_backend_available("shoal") and dist.Backend.SHOAL == "shoal", "the backend is known")
    check(dist.get_backend() == "shoal" and dist.get_backend_config() == "cpu:shoal,cuda:shoal", f"{dist.get_backend_config()}")
    world = dist.group.WORLD
    check(world._get_backend(torch.device("cuda")) is backend(world), "one backend for CPU and CUDA tensors")
    check(dist.distributed_c10d._get_object_coll_device(world) == "cpu", "objects are sent as tensors of the CPU")
    check(dist.Backend.default_device_backend_map["cpu"] == "gloo", "CPU tensors still have Gloo by default")
    shoal.register()  # a second call does nothing
    by_device = dist.new_group(backend="cpu:shoal")
    check(isinstance(backend(by_device), shoal.ProcessGroupShoal), "named by device")
    expect(RuntimeError, "device type cuda", lambda: by_device._get_backend(torch.device("cuda")))
    dist.barrier(group=by_device)
    beside = dist.new_group(backend="cpu:gloo,cuda:shoal")
    check(isinstance(beside._get_backend(torch.device("cuda")), shoal.ProcessGroupShoal), "for CUDA tensors only")
    check(not isinstance(backend(beside), shoal.ProcessGroupShoal), "CPU tensors use Gloo")
    gathered = [None] * size
    dist.all_gather_object(gathered, rank, group=beside)
    check(gathered == list(range(size)), "objects go over Gloo")
    dist.barrier(group=beside)
    alone = [dist.new_group([only]) for only in range(size)]  # the other ranks get no group
    dist.barrier(group=alone[rank])
    expect(TypeError, "pg_options .*shoal.Options", lambda: dist.new_group(pg_options=object()))


def broadcast_coalesced(rank, size):
    """c10d's own helper: many tensors of several types in pieces of at most 256 bytes."""
    def made(r):
        return [torch.full((n,), r + 1, dtype=dtype) for n in (1, 7, 60, 100) for dtype in (torch.float32, torch.float64, torch.int64)]

    for root in range(size):
        tensors = made(rank)
        dist._broadcast_coalesced(dist.group.WORLD, tensors, 256, root)
        check(all(torch.equal(found, wanted) for found, wanted in zip(tensors, made(root))), f"from {root}")


@pytest.mark.parametrize("size", (1, 2, 3))
def test_bad_calls_raise_the_errors_of_gloo(size):
    run_ranks(size, refusals)


def test_calls_refused_by_torch_do_not_reach_the_backend():
    run_ranks(3, refusals_by_torch)


def test_mismatches_name_both_ranks():
    run_ranks(2, mismatches)


@pytest.mark.parametrize("size", (1, 2, 3))
def test_empty_tensors_are_accepted(size):
    run_ranks(size, empty)


@pytest.mark.parametrize("calls", (300, pytest.param(1000, marks=pytest.mark.long)))
def test_many_calls_can_be_outstanding(calls):
    run_ranks(3, outstanding, calls)


def test_all_pairs_exchange_messages():
    run_ranks(4, all_with_all)


def test_a_barrier_waits_for_earlier_calls():
    run_ranks(3, barrier_after_calls)


def test_broadcast_coalesced():
    run_ranks(2, broadcast_coalesced)


def test_groups_are_made_by_their_members_alone():
    run_ranks(4, made_by_members)


def test_groups_are_made_outside_of_c10d():
    run_ranks(2, made_outside_of_c10d)


def test_the_backend_is_registered():
    run_ranks(2, registered)
