"""The backend "shoal" of torch.distributed, from Python, with real processes."""
import functools
import os
import re
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, AllToAllOptions

import shoal
from ranks import check, expect, run_ranks

FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
SIZES = (1, 2, 3, 4)
COUNT = 1237


def pattern(rank, dtype, count=COUNT):
    """Small integers, never zero, so that every type holds every result exactly."""
    return ((torch.arange(count) + rank) % 2 + 1).to(dtype)


def reduced(op, values):
    stacked = torch.stack([value.to(torch.float64 if value.is_floating_point() else torch.int64) for value in values])
    functions = {
        "SUM": lambda s: s.sum(0),
        "PRODUCT": lambda s: s.prod(0),
        "MIN": lambda s: s.min(0).values,
        "MAX": lambda s: s.max(0).values,
        "AVG": lambda s: s.sum(0) / len(values) if s.is_floating_point() else s.sum(0) // len(values),
        "BAND": lambda s: functools.reduce(torch.bitwise_and, s),
        "BOR": lambda s: functools.reduce(torch.bitwise_or, s),
        "BXOR": lambda s: functools.reduce(torch.bitwise_xor, s),
    }
    return functions[op](stacked)


def all_reduce_everything(rank, size):
    for dtype in FLOATING + INTEGERS:
        operations = ["SUM", "PRODUCT", "MIN", "MAX", "AVG"] + ([] if dtype.is_floating_point else ["BAND", "BOR", "BXOR"])
        for op in operations:
            tensor = pattern(rank, dtype)
            dist.all_reduce(tensor, op=getattr(dist.ReduceOp, op))
            expected = reduced(op, [pattern(r, dtype) for r in range(size)]).to(dtype)
            check(torch.equal(tensor, expected), f"{dtype} {op}: {tensor[:4]} is not {expected[:4]}")


def all_reduce_bool(rank, size):
    values = [torch.arange(COUNT) % (r + 2) == 0 for r in range(size)]
    stacked = torch.stack(values)
    for op, expected in (("SUM", stacked.any(0)), ("MAX", stacked.any(0)), ("BOR", stacked.any(0)), ("PRODUCT", stacked.all(0)),
                         ("MIN", stacked.all(0)), ("BAND", stacked.all(0)), ("BXOR", stacked.sum(0) % 2 == 1)):
        tensor = values[rank].clone()
        dist.all_reduce(tensor, op=getattr(dist.ReduceOp, op))
        check(torch.equal(tensor, expected), f"bool {op}")
        check(bool((tensor.view(torch.uint8) <= 1).all()), f"bool {op} holds something else than 0 and 1")


def reduce_bool(rank, size):
    given = [torch.arange(4 * size) % (r + 2) == 0 for r in range(size)]
    whole = torch.stack(given)
    for op, wanted in (("SUM", whole.any(0)), ("MIN", whole.all(0))):
        tensor = given[rank].clone()
        dist.reduce(tensor, dst=size - 1, op=getattr(dist.ReduceOp, op))
        check(torch.equal(tensor, wanted if rank == size - 1 else given[rank]), f"reduce of bool, {op}")
        share = torch.zeros(4, dtype=torch.bool)
        dist.reduce_scatter_tensor(share, given[rank].clone(), op=getattr(dist.ReduceOp, op))
        check(torch.equal(share, wanted[4 * rank: 4 * rank + 4]), f"reduce_scatter of bool, {op}")


def reduce_float8(rank, size):
    """Small integers, which two bits of fraction hold, and averages, which torch's conversion rounds once."""
    for dtype in FLOAT8:
        wide = [pattern(r, torch.float32, 5 * size) for r in range(size)]
        for op in ("SUM", "PRODUCT", "MIN", "MAX", "AVG"):
            expected = reduced(op, wide).to(torch.float32).to(dtype).float()
            tensor = wide[rank].to(dtype)
            dist.all_reduce(tensor, op=getattr(dist.ReduceOp, op))
            check(tensor.dtype == dtype and torch.equal(tensor.float(), expected), f"all_reduce {op} of {dtype}")
            tensor = wide[rank].to(dtype)
            dist.reduce(tensor, dst=0, op=getattr(dist.ReduceOp, op))
            check(torch.equal(tensor.float(), expected if rank == 0 else wide[rank]), f"reduce {op} of {dtype}")
            share = torch.zeros(5).to(dtype)
            dist.reduce_scatter_tensor(share, wide[rank].to(dtype), op=getattr(dist.ReduceOp, op))
            check(torch.equal(share.float(), expected[5 * rank: 5 * rank + 5]), f"reduce_scatter {op} of {dtype}")
        # Overflow: the NaN or infinity of torch's conversion, never a finite number.
        largest = torch.finfo(dtype).max
        tensor = torch.full((70,), largest).to(dtype)
        dist.all_reduce(tensor)
        wanted = torch.full((70,), size * largest).to(dtype).float()
        check(torch.equal(tensor.float(), wanted) or bool(tensor.float().isnan().all() and wanted.isnan().all()), f"overflow of {dtype}")
        tensor = torch.full((3,), float("nan") if rank == 0 else 1.0).to(dtype)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        check(bool(tensor.float().isnan().all()), f"the largest of {dtype} with a NaN is a NaN")
        expect(ValueError, r"all_reduce .*\bBOR .*Float8", lambda: dist.all_reduce(tensor, op=dist.ReduceOp.BOR))
    others = torch.ones(4).to(torch.float8_e4m3fnuz)
    expect(ValueError, r"all_reduce .*\bSUM .*Float8_e4m3fnuz", lambda: dist.all_reduce(others))
    dist.broadcast(others, src=0)  # broadcast works for every type


def all_reduce_complex(rank, size):
    for dtype, part in ((torch.complex64, torch.float32), (torch.complex128, torch.float64)):
        tensor = torch.complex(pattern(rank, part), -pattern(rank, part))
        group = dist.group.WORLD._get_backend(torch.device("cpu"))
        average = dist.AllreduceOptions()
        average.reduceOp = dist.ReduceOp.AVG
        group.allreduce([tensor], average).wait()
        mean = sum(pattern(r, part) for r in range(size)) / size
        check(tensor.dtype == dtype and torch.equal(tensor, torch.complex(mean, -mean)), f"average of {dtype}")
        dist.reduce(tensor, dst=0)
        wanted = mean * size if rank == 0 else mean
        torch.testing.assert_close(tensor, torch.complex(wanted, -wanted))
        for op in (dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
            average.reduceOp = op
            expect(ValueError, "all_reduce .*Complex", lambda: group.allreduce([tensor], average))
    tensor = torch.complex(pattern(rank, torch.float32), -pattern(rank, torch.float32))
    dist.all_reduce(tensor)
    total = sum(pattern(r, torch.float32) for r in range(size))
    check(torch.equal(tensor, torch.complex(total, -total)), "complex sum")


def shapes_and_strides(rank, size):
    total = sum(r + 1 for r in range(size))
    for make in (lambda: torch.ones(3, 4, 5, 6).contiguous(memory_format=torch.channels_last), lambda: torch.ones(8, 9).t(),
                 lambda: torch.ones(10, 10)[:, ::2], lambda: torch.ones(6, 6)[1:4, 2:5],
                 lambda: torch.tensor(1.0), lambda: torch.ones(0), lambda: torch.ones(3, 0, 2)):
        tensor = make() * 1.0
        strided = make()
        strided.fill_(rank + 1)
        dist.all_reduce(strided)
        check(torch.equal(strided, torch.full_like(tensor, total)), f"all_reduce of strides {strided.stride()}")
        strided.fill_(rank + 1)
        dist.broadcast(strided, src=size - 1)
        check(torch.equal(strided, torch.full_like(tensor, size)), f"broadcast of strides {strided.stride()}")
    whole = torch.zeros(10, 10)
    dist.all_reduce(whole[:, ::2].add_(1))
    check(torch.equal(whole[:, 1::2], torch.zeros(10, 5)), "memory between the elements was written")


def layouts(values):
    """The same values in several memory layouts: contiguous, channels last, transposed."""
    yield values.contiguous()
    yield values.contiguous(memory_format=torch.channels_last)
    yield values.transpose(0, 3).contiguous().transpose(0, 3)


def strides_that_differ(rank, size):
    """Every rank uses another memory layout; elements correspond by their index."""
    def mine(values, turn=0):
        return list(layouts(values))[(rank + turn) % 3].clone()

    shape = (2 * size, 3, 4, 5)
    value = torch.arange(float(120 * size)).view(shape)
    values = [value + r for r in range(size)]
    total = sum(values)
    for turn in range(3):
        def same(call, tensor, expected):
            check(torch.equal(tensor, expected), f"{call} with strides {tensor.stride()} on rank {rank}")

        tensor = mine(values[rank], turn)
        dist.broadcast(tensor, src=size - 1)
        same("broadcast", tensor, values[-1])
        tensor = mine(values[rank], turn)
        dist.all_reduce(tensor)
        same("all_reduce", tensor, total)
        factor = dist._make_nccl_premul_sum(2.0)
        tensor = mine(values[rank], turn)
        dist.all_reduce(tensor, op=factor)
        same("all_reduce PREMUL_SUM", tensor, 2 * total)
        tensor = mine(values[rank], turn)
        dist.reduce(tensor, dst=0)
        same("reduce", tensor, total if rank == 0 else values[rank])
        tensors = [mine(values[rank], turn), mine(values[rank], turn + 1)]
        with dist._coalescing_manager():
            for tensor in tensors:
                dist.all_reduce(tensor)
        for tensor in tensors:
            same("coalesced all_reduce", tensor, total)
        parts = [mine(torch.zeros(shape), turn) for _ in range(size)]
        dist.all_gather(parts, mine(values[rank], turn))
        for r in range(size):
            same("all_gather", parts[r], values[r])
        whole = mine(torch.zeros(2 * size * size, 3, 4, 5), turn)
        dist.all_gather_into_tensor(whole, mine(values[rank], turn))
        same("all_gather_into_tensor", whole, torch.cat(values))
        share = mine(torch.zeros(2, 3, 4, 5), turn)
        dist.reduce_scatter_tensor(share, mine(values[rank], turn + 1))
        same("reduce_scatter_tensor", share, total[2 * rank:2 * rank + 2])
        dist.reduce_scatter(share, [mine(values[rank][2 * r:2 * r + 2], turn) for r in range(size)])
        same("reduce_scatter", share, total[2 * rank:2 * rank + 2])
        exchanged = mine(torch.zeros(shape), turn)
        dist.all_to_all_single(exchanged, mine(values[rank], turn + 1))
        same("all_to_all_single", exchanged, torch.cat([v[2 * rank:2 * rank + 2] for v in values]))
        parts = [mine(torch.zeros(shape), turn) for _ in range(size)] if rank == 0 else None
        dist.gather(mine(values[rank], turn), parts, dst=0)
        for r in range(size if rank == 0 else 0):
            same("gather", parts[r], values[r])
        tensor = mine(torch.zeros(shape), turn)
        dist.scatter(tensor, [mine(v, turn) for v in values] if rank == 0 else None, src=0)
        same("scatter", tensor, values[rank])
        received = mine(torch.zeros(shape), turn)
        messages = [dist.P2POp(dist.isend, mine(values[rank], turn), (rank + 1) % size),
                    dist.P2POp(dist.irecv, received, (rank - 1) % size)]
        for work in dist.batch_isend_irecv(messages):
            work.wait()
        same("batch_isend_irecv", received, values[(rank - 1) % size])
    embedding = torch.sparse_coo_tensor([[rank]], list(layouts(values[rank][:1]))[rank % 3], (size, 3, 4, 5))
    dist.all_reduce(embedding)
    check(torch.equal(embedding.to_dense(), torch.cat([v[:1] for v in values])), "all_reduce of sparse tensors")


def uneven_parts(rank, size):
    """The ranks' tensors have different sizes, also 0; each call is made blocking and asynchronously."""
    def part(r, value=None):
        return torch.full((2 * r, 3), float(r if value is None else value))

    def finish(work, is_async):
        if is_async:
            work.wait()

    for dtype in (torch.float32, torch.bool, torch.complex64):
        values = [part(r).to(dtype) for r in range(size)]
        for is_async in (False, True):
            outputs = [torch.zeros(2 * r, 3, dtype=dtype) for r in range(size)]
            finish(dist.all_gather(outputs, values[rank], async_op=is_async), is_async)
            check(all(torch.equal(outputs[r], values[r]) for r in range(size)), f"all_gather of {dtype}")
            for root in range(size):
                parts = [torch.zeros(3, 2 * r, dtype=dtype).t() for r in range(size)] if rank == root else None
                finish(dist.gather(values[rank], parts, dst=root, async_op=is_async), is_async)
                check(rank != root or all(torch.equal(parts[r], values[r]) for r in range(size)), f"gather of {dtype}")
                output = torch.zeros(2 * rank, 3, dtype=dtype)
                finish(dist.scatter(output, values if rank == root else None, src=root, async_op=is_async), is_async)
                check(torch.equal(output, values[rank]), f"scatter of {dtype}")
    whole = torch.full((size * (size + 1) // 2,), -1.0)  # one piece of memory, of which the root's own tensor is a part
    parts = list(whole.split([r + 1 for r in range(size)]))
    own = parts[rank].fill_(rank) if rank == 0 else torch.full((rank + 1,), float(rank))
    dist.gather(own, parts if rank == 0 else None, dst=0)
    expected = torch.cat([torch.full((r + 1,), float(r)) for r in range(size)])
    check(rank != 0 or torch.equal(whole, expected), "gather in place")
    dist.scatter(own.zero_() if rank != 0 else own, parts if rank == 0 else None, src=0)
    check(torch.equal(own, torch.full((rank + 1,), float(rank))), "scatter in place")
    group = dist.group.WORLD._get_backend(torch.device("cpu"))
    lists = [[torch.zeros(r + 1), torch.zeros(2)] for r in range(size)]
    group.allgather_coalesced(lists, [torch.full((rank + 1,), float(rank)), torch.full((2,), float(rank))]).wait()
    check(all(torch.equal(lists[r][0], torch.full((r + 1,), float(r))) for r in range(size)), "all_gather_coalesced")
    if size > 1:
        expect(ValueError, f"all_gather: .*index {rank}", lambda: dist.all_gather([torch.zeros(5)] * size, torch.zeros(4)))


def integer_averages(rank, size):
    """The sum may overflow the type; the average is exact and rounded toward zero."""
    average = dist.ReduceOp.AVG
    for dtype in INTEGERS + (torch.uint16, torch.uint32, torch.uint64):
        limits = torch.iinfo(dtype)
        columns = [[limits.max - r, limits.min + r, limits.max - 1, 7 + 2 * r if limits.min == 0 else -7 - 2 * r] for r in range(size)]
        totals = [sum(column) for column in zip(*columns)]
        expected = torch.tensor([abs(t) // size * (1 if t > 0 else -1) for t in totals], dtype=dtype)
        mine = torch.tensor(columns[rank], dtype=dtype)
        tensor = mine.clone()
        dist.all_reduce(tensor, op=average)
        check(torch.equal(tensor, expected), f"all_reduce of {dtype}: {tensor.tolist()}, not {expected.tolist()}")
        tensor = mine.clone()
        dist.all_reduce(tensor, op=average, async_op=True).wait()
        check(torch.equal(tensor, expected), f"asynchronous all_reduce of {dtype}")
        tensor = mine.clone()
        dist.reduce(tensor, dst=0, op=average)
        check(torch.equal(tensor, expected if rank == 0 else mine), f"reduce of {dtype}")
        share = torch.zeros(4, dtype=dtype)
        dist.reduce_scatter_tensor(share, torch.cat([mine] * size), op=average)
        check(torch.equal(share, expected), f"reduce_scatter_tensor of {dtype}")


def broadcast_and_gather(rank, size):
    for dtype in FLOATING + INTEGERS + (torch.bool, torch.complex64):
        for root in range(size):
            tensor = pattern(rank, dtype)
            dist.broadcast(tensor, src=root)
            check(torch.equal(tensor, pattern(root, dtype)), f"broadcast of {dtype} from {root}")
        outputs = [torch.zeros(COUNT, dtype=dtype) for _ in range(size)]
        dist.all_gather(outputs, pattern(rank, dtype))
        for r in range(size):
            check(torch.equal(outputs[r], pattern(r, dtype)), f"all_gather of {dtype}, part {r}")
        whole = torch.zeros(size * COUNT, dtype=dtype)
        dist.all_gather_into_tensor(whole, pattern(rank, dtype))
        check(torch.equal(whole, torch.cat([pattern(r, dtype) for r in range(size)])), f"all_gather_into_tensor of {dtype}")
    matrix = [torch.zeros(4, 6).t() for _ in range(size)]
    dist.all_gather(matrix, torch.full((6, 4), float(rank)))
    check(all(torch.equal(matrix[r], torch.full((6, 4), float(r))) for r in range(size)), "all_gather into transposed tensors")
    empty = [torch.ones(0) for _ in range(size)]
    dist.all_gather(empty, torch.ones(0))


def reduce_and_scatter(rank, size):
    for dtype in FLOATING + INTEGERS:
        whole = [pattern(r, dtype, size * 50) for r in range(size)]
        for op in ("SUM", "MAX", "AVG"):
            expected = reduced(op, whole).to(dtype)
            for root in range(size):
                tensor = whole[rank].clone()
                dist.reduce(tensor, dst=root, op=getattr(dist.ReduceOp, op))
                check(torch.equal(tensor, expected if rank == root else whole[rank]), f"reduce {op} of {dtype} to {root}")
            share = torch.zeros(50, dtype=dtype)
            dist.reduce_scatter_tensor(share, whole[rank].clone(), op=getattr(dist.ReduceOp, op))
            check(torch.equal(share, expected[50 * rank:50 * (rank + 1)]), f"reduce_scatter_tensor {op} of {dtype}")
    mine = [torch.full((2 * r + 1, 3), float(rank + r)).t() for r in range(size)]  # uneven, and not contiguous
    output = torch.zeros(3, 2 * rank + 1)
    dist.reduce_scatter(output, mine)
    check(torch.equal(output, torch.full_like(output, sum(r + rank for r in range(size)))), "reduce_scatter of uneven parts")
    output = torch.zeros(4, dtype=torch.complex64)
    dist.reduce_scatter(output, list(torch.full((size, 4), complex(rank, 1)).unbind()))
    total = complex(size * (size - 1) / 2, size)
    check(torch.equal(output, torch.full((4,), total)), "reduce_scatter of complex numbers")
    inputs, outputs = [torch.full((size * n,), float(rank)) for n in (1, 5)], [torch.zeros(n) for n in (1, 5)]
    with dist._coalescing_manager():
        for given, result in zip(inputs, outputs):
            dist.reduce_scatter_tensor(result, given)
    same = all(torch.equal(result, torch.full_like(result, size * (size - 1) / 2)) for result in outputs)
    check(same, "coalesced reduce_scatter")


def gather_and_scatter(rank, size):
    for dtype in FLOATING + INTEGERS + (torch.bool, torch.complex64, torch.float8_e4m3fn):
        for root in range(size):
            given = [pattern(r, torch.float32).to(dtype) for r in range(size)]
            parts = [torch.zeros(COUNT).to(dtype) for _ in range(size)] if rank == root else None
            dist.gather(given[rank], parts, dst=root)
            same = rank != root or all(torch.equal(parts[r].float(), given[r].float()) for r in range(size))
            check(same, f"gather of {dtype} to {root}")
            output = torch.zeros(COUNT).to(dtype)
            dist.scatter(output, given if rank == root else None, src=root)
            check(torch.equal(output.float(), given[rank].float()), f"scatter of {dtype} from {root}")
    whole = torch.arange(6.0 * size).view(size, 6)
    output = torch.zeros(2, 3).t()
    dist.scatter(output, [row.view(3, 2) for row in whole] if rank == 0 else None, src=0)  # one piece of memory
    check(torch.equal(output, whole[rank].view(3, 2)), "scatter of rows into a transposed tensor")


def all_to_all(rank, size):
    dist.all_to_all_single(output := torch.zeros(2 * size, 3), torch.arange(2.0 * size)[:, None] + 100 * rank + torch.zeros(3))
    expected = torch.cat([torch.arange(2.0 * rank, 2.0 * rank + 2) + 100 * r for r in range(size)])
    check(torch.equal(output, expected[:, None].expand(-1, 3)), "all_to_all_single in equal parts")
    sends, receives = [(rank + r) % 3 for r in range(size)], [(r + rank) % 3 for r in range(size)]
    for dtype in (torch.float32, torch.int64, torch.bool):
        given = (torch.arange(sum(sends) * 5).view(-1, 5) % (rank + 2)).to(dtype)
        output = torch.zeros(sum(receives), 5, dtype=dtype)
        dist.all_to_all_single(output, given, receives, sends)
        parts = []
        for r in range(size):
            of_r = [(r + q) % 3 for q in range(size)]
            start = sum(of_r[:rank])
            parts.append((torch.arange(sum(of_r) * 5).view(-1, 5) % (r + 2)).to(dtype)[start:start + of_r[rank]])
        check(torch.equal(output, torch.cat(parts)), f"all_to_all_single of {dtype} in uneven parts")
    outputs = [torch.zeros(3, r + 1).t() for r in range(size)]
    dist.all_to_all(outputs, [torch.full((rank + 1, 3), 10.0 * rank + r) for r in range(size)])
    same = all(torch.equal(outputs[r], torch.full((r + 1, 3), 10.0 * r + rank)) for r in range(size))
    check(same, "all_to_all of tensors of many shapes")


def point_to_point(rank, size):
    right, left = (rank + 1) % size, (rank - 1) % size
    for dtype in FLOATING + INTEGERS + (torch.bool, torch.complex64):
        incoming = torch.zeros(COUNT, dtype=dtype)
        works = [dist.isend(pattern(rank, dtype), right, tag=7), dist.irecv(incoming, left, tag=7)]
        for work in works:
            work.wait()
        check(torch.equal(incoming, pattern(left, dtype)), f"{dtype} around the ring")
    transposed = torch.zeros(4, 6).t()
    work = dist.irecv(transposed, left)
    dist.send(torch.arange(24.0).view(6, 4).contiguous() + rank, right)
    work.wait()
    check(torch.equal(transposed, torch.arange(24.0).view(6, 4) + left), "into a transposed tensor")
    # Messages match by tag, in any order of the receives.
    receives = [dist.irecv(torch.zeros(1), left, tag=tag) for tag in (3, 1, 2)]
    for tag in (1, 2, 3):
        dist.isend(torch.tensor([10.0 * rank + tag]), right, tag=tag)
    check([work.get_future().wait()[0].item() for work in receives] == [10.0 * left + tag for tag in (3, 1, 2)], "tags")
    if rank == 0:
        senders = set()
        for _ in range(size - 1):
            tensor = torch.zeros(2)
            source = dist.recv(tensor, tag=9)
            check(tensor.tolist() == [source, 9.0], f"from {source}: {tensor.tolist()}")
            senders.add(source)
        check(senders == set(range(1, size)), "every rank sent once")
    else:
        dist.send(torch.tensor([rank, 9.0]), 0, tag=9)
    incoming = torch.zeros(5)
    operations = [dist.P2POp(dist.isend, torch.full((5,), float(rank)), right), dist.P2POp(dist.irecv, incoming, left)]
    works = dist.batch_isend_irecv(operations)
    check(len(works) == 1, "a batch is one work")
    works[0].wait()
    check(torch.equal(incoming, torch.full((5,), float(left))), "a batch around the ring")
    group = dist.group.WORLD._get_backend(torch.device("cpu"))
    expect(ValueError, rf"send: .*\b{size}\b", lambda: group.send([torch.ones(1)], size, 0))
    expect(ValueError, "recv: .*empty tensor list", lambda: group.recv([], right, 0))


def sparse(rank, size):
    def of_rank(r, dtype):
        indices = torch.tensor([[0, r + 1, r + 1], [1, 0, 0]])  # one index twice: not coalesced
        return torch.sparse_coo_tensor(indices, torch.ones(3, 5).to(dtype) * (r + 1), (size + 1, 2, 5))

    for dtype in (torch.float32, torch.float16, torch.int64):
        tensor = of_rank(rank, dtype)
        dist.all_reduce(tensor)
        expected = sum(of_rank(r, dtype).to_dense() for r in range(size))
        check(torch.equal(tensor.to_dense(), expected), f"the sum of sparse {dtype}")
    nothing = torch.sparse_coo_tensor(torch.zeros(1, 0).long(), torch.zeros(0), (4,))
    mine = torch.sparse_coo_tensor(torch.tensor([[rank]]), torch.ones(1), (4,)) if rank == 0 else nothing
    dist.all_reduce(mine)
    check(torch.equal(mine.to_dense(), torch.tensor([1.0, 0, 0, 0])), "ranks without values")
    expect(ValueError, "all_reduce.*SUM", lambda: dist.all_reduce(torch.eye(3).to_sparse(), op=dist.ReduceOp.MAX))


def objects(rank, size):
    gathered = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank})
    check([entry["rank"] for entry in gathered] == list(range(size)), "all_gather_object")
    holder = [("from", rank)]
    dist.broadcast_object_list(holder, src=size - 1)
    check(holder == [("from", size - 1)], "broadcast_object_list")


def asynchronous(rank, size):
    tensors = [torch.full((1 + 100 * i,), float(rank + i)) for i in range(200)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    futures = [work.get_future() for work in works]
    doubled = futures[5].then(lambda future: future.value()[0] * 2)
    for i, (work, tensor) in enumerate(zip(works, tensors)):
        work.wait()
        check(work.is_completed(), "a work that was waited for has ended")
        check(torch.equal(tensor, torch.full_like(tensor, sum(r + i for r in range(size)))), f"all_reduce {i} in flight")
    check(torch.equal(torch.futures.wait_all([doubled])[0], 2 * tensors[5]), "a callback on a future")
    check(futures[7].wait()[0] is not None and futures[7].done(), "a future has the tensors")
    outputs = [torch.zeros(5) for _ in range(size)]
    value = dist.all_gather(outputs, torch.full((5,), float(rank)), async_op=True).get_future().wait()
    check(torch.equal(outputs[size - 1], torch.full((5,), float(size - 1))), "all_gather ends before its future")


def barriers(rank, size):
    for late in range(size):
        if rank == late:
            time.sleep(0.2)
        entered = torch.tensor([time.monotonic()], dtype=torch.float64)
        dist.barrier()
        left = torch.tensor([time.monotonic()], dtype=torch.float64)
        dist.all_reduce(entered, op=dist.ReduceOp.MAX)
        dist.all_reduce(left, op=dist.ReduceOp.MIN)
        check(left.item() >= entered.item(), "a rank left the barrier before the last one entered it")
    dist.barrier(device_ids=[rank])  # there may be no such device on this machine


def calls_that_unpack(rank, size):
    """Starts each kind of call that copies its result into the caller's tensors. Yields (work, function that checks the result)."""
    mine = torch.full((3, 2), float(rank + 1))
    total = float(size * (size + 1) // 2)
    numbers = [float(r + 1) for r in range(size)]

    gathered = [torch.zeros(3, 2) for _ in range(size)]
    yield dist.all_gather(gathered, mine, async_op=True), lambda: [t[0, 0].item() for t in gathered] == numbers
    at_root = [torch.zeros(3, 2) for _ in range(size)] if rank == 0 else None
    yield dist.gather(mine, at_root, dst=0, async_op=True), lambda: rank != 0 or [t[0, 0].item() for t in at_root] == numbers
    with_holes = torch.full((3, 4), float(rank + 1))[:, ::2]
    yield dist.all_reduce(with_holes, async_op=True), lambda: bool((with_holes == total).all())
    received = torch.full((3, 4), float(rank + 1))[:, ::2]
    yield dist.broadcast(received, src=size - 1, async_op=True), lambda: bool((received == float(size)).all())
    share = torch.zeros(3, 4)[:, ::2]
    yield dist.reduce_scatter(share, [mine] * size, async_op=True), lambda: bool((share == total).all())
    part = torch.zeros(3, 4)[:, ::2]
    yield (dist.scatter(part, [torch.full((3, 2), n) for n in numbers] if rank == 0 else None, src=0, async_op=True),
           lambda: bool((part == float(rank + 1)).all()))
    exchanged = [torch.zeros(3, 2) for _ in range(size)]
    yield dist.all_to_all(exchanged, [mine] * size, async_op=True), lambda: [t[0, 0].item() for t in exchanged] == numbers


def modes_of_the_caller(rank, size):
    """The thread that ends a call, and copies its result, may be another one than the caller's, without the caller's modes."""
    for name, mode in (("inference", torch.inference_mode), ("no_grad", torch.no_grad), ("autocast", lambda: torch.autocast("cpu"))):
        for pause in (0, 0.01):  # after the pause shoal's thread has ended the call
            with mode():
                for number, (work, is_right) in enumerate(calls_that_unpack(rank, size)):
                    time.sleep(pause)
                    if work is not None:
                        work.wait()
                    check(is_right(), f"{name}: call {number}")
    with torch.inference_mode():
        made_there = [torch.zeros(4) for _ in range(size)]
    dist.all_gather(made_there, torch.full((4,), float(rank)))
    check([t[0].item() for t in made_there] == [float(r) for r in range(size)], "tensors made in inference mode, outside of it")


def function_transforms(rank, size):
    """Inside torch.func's transforms, tensors may be wrappers without memory, also in the lists of lists that PyTorch does not unwrap."""
    def loss(x):
        for number, (work, is_right) in enumerate(calls_that_unpack(rank, size)):
            if work is not None:
                work.wait()
            check(is_right(), f"call {number}")
        outputs = [[torch.zeros(4)] for _ in range(size)]
        dist.group.WORLD.allgather_coalesced(outputs, [x.detach()]).wait()
        check([t[0][0].item() for t in outputs] == [1.0] * size, "allgather_coalesced")
        return weighted(x)

    def weighted(x):
        gathered = [torch.zeros(4) for _ in range(size)]
        dist.all_gather(gathered, x)
        return (torch.stack(gathered).sum() * x).sum()

    x = torch.ones(4)
    total = torch.full((4,), 4.0 * size)
    check(torch.equal(torch.func.grad(loss)(x), total), "grad")
    check(torch.equal(torch.func.grad(lambda x: torch.func.grad(loss)(x).sum() + loss(x))(x), total), "grad of grad")
    check(torch.func.vjp(loss, x)[0].item() == 16.0 * size, "vjp")
    check(torch.func.jvp(loss, (x,), (torch.ones(4),))[0].item() == 16.0 * size, "jvp")
    check(torch.func.functionalize(weighted)(x).item() == 16.0 * size, "functionalize")  # takes no lists of inputs (Gloo: neither)
    # There is no rule for collectives in vmap: an error, on every rank and before anything is sent.
    expect(RuntimeError, "[Bb]atching rule", lambda: torch.func.vmap(loss)(torch.ones(2, 4)))
    dist.barrier()


def bad_arguments(rank, size):
    group = dist.group.WORLD._get_backend(torch.device("cpu"))
    check(isinstance(group, shoal.ProcessGroupShoal) and group.name() == "shoal", "the backend's name")
    expect(ValueError, r"all_reduce .*\bBAND .*Float", lambda: dist.all_reduce(torch.ones(3), op=dist.ReduceOp.BAND))
    expect(ValueError, r"all_reduce .*\bAVG .*Bool", lambda: dist.all_reduce(torch.ones(3, dtype=torch.bool), op=dist.ReduceOp.AVG))
    two = [torch.ones(1), torch.ones(1)]
    expect(ValueError, "single-element tensor list", lambda: group.allreduce(two, dist.AllreduceOptions()))
    rows = torch.eye(3).to_sparse_csr()
    expect(ValueError, "only supports dense", lambda: group.allreduce([rows], dist.AllreduceOptions()))
    options = dist.BroadcastOptions()
    options.rootRank = size
    expect(ValueError, "invalid root rank", lambda: group.broadcast([torch.ones(1)], options))
    one = torch.ones(1)
    expect(ValueError, "output list size", lambda: group.allgather([[one] * (size + 1)], [one], AllgatherOptions()))
    expect(ValueError, "output tensor size", lambda: group._allgather_base(torch.ones(size + 1), one))
    expect(ValueError, "invalid tensor type at index 1", lambda: dist.all_gather_into_tensor(torch.ones(size).int(), one))
    expect(ValueError, "input tensor must be the same size", lambda: group._reduce_scatter_base(one, torch.ones(size + 1)))
    reduce_to = dist.ReduceOptions()
    reduce_to.rootRank = -1
    expect(ValueError, "invalid root rank", lambda: group.reduce([one], reduce_to))
    if rank == 0:
        expect(ValueError, "invalid tensor size at index 0", lambda: dist.scatter(one, [torch.ones(2)] * size))
    equal = torch.ones(size)
    expect(ValueError, "Split sizes", lambda: dist.all_to_all_single(equal.clone(), equal, [2] * size, [1] * size))
    negative = [-1] + [1] * (size - 1)
    expect(ValueError, r"all_to_all_single: .*\b0\b.*input.*-1", lambda: dist.all_to_all_single(equal.clone(), equal, None, negative))
    expect(ValueError, rf"all_to_all_single: .*\b{size + 1}\b.*output.*\b{size}\b",
           lambda: group.alltoall_base(equal.clone(), equal, [1] * (size + 1), [1] * size, AllToAllOptions()))
    if size > 1:
        odd = torch.ones(2 * size + 1)
        expect(ValueError, rf"all_to_all_single: .*\b{2 * size + 1}\b.*\b{size}\b",
               lambda: group.alltoall_base(odd.clone(), odd, [], [], AllToAllOptions()))
    more = [one] * (size + 1)
    expect(ValueError, rf"all_to_all: .*\b{size + 1}\b.*\b{size}\b", lambda: group.alltoall(more, more, AllToAllOptions()))
    meta = torch.ones(1, device="meta")
    expect(ValueError, "all_reduce: .*meta", lambda: group.allreduce([meta], dist.AllreduceOptions()))
    expect(ValueError, "set_timeout: .*-1000 ms", lambda: group.set_timeout(timedelta(seconds=-1)))
    tensor = torch.ones(1)
    dist.all_reduce(tensor)  # the bad calls have not closed the group
    check(tensor.item() == size, "the group still works")


def splits_that_differ(rank, size):
    """Rank 0 sends three rows to rank 1, which expects two: both errors name the ranks and the numbers."""
    sends, receives = ([1, 3], [1, 1]) if rank == 0 else ([1, 1], [2, 1])

    def call_and_barrier():
        dist.all_to_all_single(torch.zeros(sum(receives)), torch.zeros(sum(sends)), receives, sends)
        dist.barrier()  # rank 0 has all its data and may end its call before rank 1 finds the difference

    expect(dist.DistBackendError, r"rank 0\b.*\b3\b.*rank 1\b.*\b2\b", call_and_barrier)


def subgroups(rank, size):
    even = dist.new_group(list(range(0, size, 2)))
    pair = dist.new_group([0, size - 1], pg_options=shoal.Options(algorithm="ring"))
    if rank % 2 == 0:
        tensor = torch.full((9,), float(rank))
        dist.all_reduce(tensor, group=even)
        check(tensor[0].item() == sum(range(0, size, 2)), "sum over the even ranks")
    if rank in (0, size - 1):
        tensor = torch.full((9,), float(rank))
        dist.all_reduce(tensor, group=pair)
        check(tensor[0].item() == size - 1, "sum over the first and the last rank")


def groups_share_links(rank, size):
    """Groups need no sockets, no threads and no startup, coexist and end in any order."""
    dist.all_reduce(torch.ones(1))
    files, threads = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    groups = [dist.new_group([r for r in range(size) if r != left_out]) for left_out in range(size) for _ in range(5)]
    for number, group in enumerate(groups):
        if dist.get_rank(group) >= 0:
            tensor = torch.full((33,), float(rank))
            dist.all_reduce(tensor, group=group)
            check(tensor[0].item() == size * (size - 1) / 2 - number // 5, f"sum over the group without rank {number // 5}")
    check(len(os.listdir("/proc/self/fd")) == files, "groups need descriptors")
    check(len(os.listdir("/proc/self/task")) == threads, "groups need threads")
    for group in groups[::2]:
        if dist.get_rank(group) >= 0:
            dist.destroy_process_group(group)
    if dist.get_rank(groups[1]) >= 0:
        dist.barrier(group=groups[1])
    own = dist.new_group(pg_options=shoal.Options(transports="tcp"))
    dist.barrier(group=own)


def destroyed(rank, size):
    """A rank may destroy a group that it still references; later calls on it fail."""
    group = dist.group.WORLD._get_backend(torch.device("cpu"))
    subgroup = dist.new_group([0, 1])
    if rank < 2:
        dist.barrier(group=subgroup)
    tensors = [torch.ones(1) for _ in range(50)]
    for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
        work.wait()
    dist.destroy_process_group()
    expect(dist.DistBackendError, "destroyed", lambda: group.allreduce([torch.ones(1)], dist.AllreduceOptions()))
    expect(dist.DistBackendError, "destroyed", lambda: group.shrink([1 - rank]) if rank < 2 else group.shrink([0]))
    group.abort()  # without a call in flight


def splits(rank, size):
    group = dist.group.WORLD._get_backend(torch.device("cpu"))
    check(group.supports_splitting and group.supports_shrinking, "can split and shrink")
    if rank == 1:
        expect(ValueError, r"shrink_group: .*\b1\b", lambda: group.shrink([1]))
        return
    smaller = dist.shrink_group([1])
    check(dist.get_world_size() == size - 1, "the world has shrunk")
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=smaller)
    check(tensor.item() == size * (size - 1) / 2 - 1, "the sum over the surviving ranks")
    shoal.monitored_barrier()


def late_rank(rank, size):
    store = dist.distributed_c10d._get_default_store()
    if rank == size - 1:
        store.wait([f"timed out {r}" for r in range(size - 1)])
        return None
    started = time.monotonic()
    tensor = torch.ones(10)
    try:
        group = dist.group.WORLD._get_backend(torch.device("cpu"))
        options = dist.AllreduceOptions()
        options.timeout = timedelta(seconds=1)
        work = group.allreduce([tensor], options)
        future = work.get_future()
        work.wait()
    except dist.DistBackendError as error:
        store.set(f"timed out {rank}", "")
        check(future.done(), "the future has ended too")
        expect(RuntimeError, "shoal all_reduce", future.wait)
        expect(dist.DistBackendError, "shoal", lambda: dist.all_reduce(tensor))  # the group is closed
        return str(error), time.monotonic() - started
    raise AssertionError("no error")


def mismatch(rank, size):
    tensor = torch.ones(10 + rank)
    try:
        dist.all_reduce(tensor)
    except dist.DistBackendError as error:
        return str(error)
    raise AssertionError("no error")


def aborted(rank, size):
    tensor = torch.ones(10)
    if rank == 0:
        time.sleep(0.3)
        dist.group.WORLD._get_backend(torch.device("cpu")).abort()
        return ""
    try:
        dist.all_reduce(tensor)
    except dist.DistBackendError as error:
        return str(error)
    raise AssertionError("no error")


def shared_tensors(rank, size):
    group = dist.group.WORLD._get_backend(torch.device("cpu"))
    cpu = torch.device("cpu")
    check(group.supports_tensor_alloc(cpu), "the backend allocates memory")
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for elements in (0, 1, 1000, 300_001):
            tensor = group.allocate_tensor(elements, dtype=dtype, device=cpu)
            check(tensor.shape == (elements,) and tensor.dtype == dtype, "shape and type")
            tensor.copy_(torch.arange(elements) % 7 + rank)
            expected = (torch.arange(elements) % 7) * size + size * (size - 1) // 2
            dist.all_reduce(tensor[: elements // 2])
            dist.all_reduce(tensor[elements // 2:])
            check(torch.equal(tensor, expected.to(dtype)), f"the sum of {elements} {dtype}")
    pieces = [group.allocate_tensor(100_000, dtype=torch.float32, device=cpu) for _ in range(20)]
    del pieces  # frees the memory
    expect(ValueError, "register_buffer: .*CUDA.*cpu", lambda: group.register_buffer(torch.zeros(3)))


def time_estimates(rank, size):
    estimator = dist.distributed_c10d._time_estimator
    group = dist.group.WORLD._get_backend(torch.device("cpu"))
    check(group.supports_time_estimate, "time estimates are offered")

    def estimate(call):
        with estimator() as estimated:
            work = call()
            if work is not None:
                work.wait()
        return estimated.estimated_time

    expect(RuntimeError, "startTimeEstimate", group._end_time_estimate)
    if rank == 0:  # an estimate needs no other rank
        tensor = torch.full((1000,), 3.0)
        # A strided output, to which a call copies its result: an estimate must not.
        outputs = [torch.full((1000, 2), -1.0)[:, 0] for _ in range(size)]
        one = estimate(lambda: dist.all_reduce(tensor))
        calls = [lambda: dist.broadcast(tensor, src=0), lambda: dist.barrier(), lambda: dist.all_gather(outputs, tensor),
                 lambda: dist.all_reduce(tensor, async_op=True)]
        times = [estimate(call) for call in calls]
        check(estimate(lambda: [call() for call in calls[:3]] and None) >= sum(times[:3]) * 0.999, "times add up")
        check(torch.equal(tensor, torch.full((1000,), 3.0)), "a call was made")
        check(all(torch.equal(each, torch.full((1000,), -1.0)) for each in outputs), "an output was touched")
        check(estimate(lambda: None) == 0, "an empty block takes no time")
        if size > 1:
            check(0 < one < estimate(lambda: dist.all_reduce(torch.ones(1_000_000))), "larger calls take longer")
            sent = [estimate(lambda n=n: dist.send(torch.ones(n), dst=1)) for n in (10, 1_000_000)]
            check(0 < sent[0] < sent[1], "larger messages take longer")
            check(all(time > 0 for time in times), f"every call takes time: {times}")
        group._start_time_estimate()
        sparse_one = torch.sparse_coo_tensor([[0]], [1.0], (4,))
        expect(ValueError, "all_reduce .*estimate", lambda: dist.all_reduce(sparse_one))
        expect(ValueError, "monitored_barrier: .*estimate", lambda: shoal.monitored_barrier())
        expect(ValueError, r"all_reduce .*\bBAND .*Float", lambda: dist.all_reduce(tensor, op=dist.ReduceOp.BAND))
        group._end_time_estimate()
    tensor = torch.full((1000,), rank + 1.0)
    dist.all_reduce(tensor)
    check(torch.equal(tensor, torch.full((1000,), size * (size + 1) / 2)), "the calls after an estimate are made")


@pytest.mark.parametrize("size", SIZES)
def test_all_reduce_every_type_and_operation(size):
    run_ranks(size, all_reduce_everything)


@pytest.mark.parametrize("size", SIZES)
def test_all_reduce_bool(size):
    run_ranks(size, all_reduce_bool)


@pytest.mark.parametrize("size", (1, 3))
def test_reduce_bool(size):
    run_ranks(size, reduce_bool)


@pytest.mark.parametrize("size", SIZES)
def test_reduce_floats_of_8_bits(size):
    run_ranks(size, reduce_float8)


@pytest.mark.parametrize("size", (1, 3))
def test_all_reduce_complex(size):
    run_ranks(size, all_reduce_complex)


@pytest.mark.parametrize("size", SIZES)
def test_shapes_and_strides(size):
    run_ranks(size, shapes_and_strides)


@pytest.mark.parametrize("size", (2, 3))
def test_ranks_may_use_different_strides(size):
    run_ranks(size, strides_that_differ)


@pytest.mark.parametrize("size", (1, 3))
def test_parts_may_have_different_sizes(size):
    run_ranks(size, uneven_parts)


@pytest.mark.parametrize("size", (2, 3))
def test_averages_of_integers(size):
    run_ranks(size, integer_averages)


@pytest.mark.parametrize("size", SIZES)
def test_broadcast_and_all_gather(size):
    run_ranks(size, broadcast_and_gather)


@pytest.mark.parametrize("size", SIZES)
def test_reduce_and_reduce_scatter(size):
    run_ranks(size, reduce_and_scatter)


@pytest.mark.parametrize("size", SIZES)
def test_gather_and_scatter(size):
    run_ranks(size, gather_and_scatter)


@pytest.mark.parametrize("size", SIZES)
def test_all_to_all(size):
    run_ranks(size, all_to_all)


def test_different_splits_are_a_mismatch():
    run_ranks(2, splits_that_differ)


@pytest.mark.parametrize("size", (2, 3, 4))
def test_point_to_point(size):
    run_ranks(size, point_to_point)


@pytest.mark.parametrize("size", (1, 3))
def test_sums_of_sparse_tensors(size):
    run_ranks(size, sparse)


@pytest.mark.parametrize("size", (1, 2, 3))
def test_tensors_in_shared_memory(size):
    run_ranks(size, shared_tensors)


@pytest.mark.parametrize("size", (1, 3))
def test_estimates_of_time(size):
    run_ranks(size, time_estimates)


@pytest.mark.parametrize("size", (1, 3))
def test_objects(size):
    run_ranks(size, objects)


@pytest.mark.parametrize("size", SIZES)
def test_many_calls_in_flight_have_futures(size):
    run_ranks(size, asynchronous)


@pytest.mark.parametrize("size", (1, 2, 4))
def test_barrier(size):
    run_ranks(size, barriers)


@pytest.mark.parametrize("size", (2, 3))
def test_calls_work_in_every_mode_of_the_caller(size):
    run_ranks(size, modes_of_the_caller)


def test_function_transforms():
    run_ranks(2, function_transforms)


@pytest.mark.parametrize("size", (1, 2))
def test_bad_arguments_are_refused(size):
    run_ranks(size, bad_arguments)


@pytest.mark.parametrize("size", (3, 4))
def test_subgroups(size):
    run_ranks(size, subgroups)


@pytest.mark.parametrize("size", (2, 4))
def test_groups_share_links(size):
    run_ranks(size, groups_share_links)


def test_calls_after_destruction_fail():
    for _ in range(5):
        run_ranks(4, destroyed)


def test_a_group_shrinks():
    run_ranks(4, splits)


@pytest.mark.parametrize("size", (2, 3))
def test_a_timeout_names_the_late_rank(size):
    for message, seconds in run_ranks(size, late_rank)[:-1]:
        assert "timeout" in message
        assert re.search(rf"\b{size - 1}\b", message), message
        assert seconds < 4


def test_all_ranks_report_a_mismatch():
    for message in run_ranks(2, mismatch):
        assert "mismatch" in message


def test_abort_ends_the_waits_of_other_ranks():
    for message in run_ranks(3, aborted)[1:]:
        assert "shoal all_reduce" in message
