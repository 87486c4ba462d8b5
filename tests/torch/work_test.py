"""c10d's Work, coalescing, monitored barrier and flight recorder over this backend."""
import ast
import os
import pickle
import re
import tempfile
import time
from datetime import timedelta

os.environ["TORCH_FR_BUFFER_SIZE"] = "100"  # read by the backend when its first group is made
TRACES = tempfile.mkdtemp(prefix="shoal-traces-")
os.environ["TORCH_FR_DUMP_TEMP_FILE"] = os.path.join(TRACES, "rank_")

import pytest
import torch
import torch.distributed as dist
from torch.distributed.flight_recorder.components.builder import build_db
from torch.distributed.flight_recorder.components.config_manager import JobConfig

import shoal
from ranks import check, expect, run_ranks

SUCCESS, TIMEOUT = 0, 1  # c10d::WorkResult


def backend():
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def ends_of_a_work(rank, size):
    tensor = torch.ones(1000)
    work = dist.all_reduce(tensor, async_op=True)
    check(work.wait(), "wait() returns true after the end")
    check(work.is_success(), "success")
    check(0 <= work._get_duration() < 60e3, f"a duration of {work._get_duration()} ms")
    check(work.get_future_result().wait() == SUCCESS, "the result is success")
    check([t.data_ptr() for t in work.result()] == [tensor.data_ptr()], "the result is the tensor")
    before = backend()._get_sequence_number_for_group()
    dist.barrier()
    dist.all_reduce(tensor)
    check(backend()._get_sequence_number_for_group() == before + 2, "two calls, two sequence numbers")


def a_wait_with_a_timeout(rank, size):
    tensor = torch.ones(3)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        expect(RuntimeError, "timed out", lambda: work.wait(timedelta(milliseconds=50)))
        check(not work.is_completed(), "the operation is still running")
    dist.distributed_c10d._get_default_store().set(f"timed out {rank}", "")
    dist.distributed_c10d._get_default_store().wait(["timed out 0"])
    if rank == 0:
        work.wait()
    else:
        dist.all_reduce(tensor)
    check(torch.equal(tensor, torch.full((3,), float(size))), "the result of the operation")


def tell_timeout(rank):
    dist.distributed_c10d._get_default_store().set(f"timed out {rank}", "")


def stay_until_timeout(ranks):
    """Keeps a rank that makes no call alive until the other ranks have timed out."""
    dist.distributed_c10d._get_default_store().wait([f"timed out {rank}" for rank in ranks])


def a_timeout_of_the_group(rank, size):
    backend().set_timeout(timedelta(milliseconds=300))
    if rank == size - 1:
        stay_until_timeout(range(size - 1))
        return
    work = dist.all_reduce(torch.ones(3), async_op=True)
    expect(dist.DistBackendError, "all_reduce: Timed out", work.wait)
    tell_timeout(rank)
    check(work.get_future_result().wait() == TIMEOUT, "the result is a timeout")
    check(not work.is_success(), "no success")


def premultiplied(rank, size):
    for factor in (0.5, torch.tensor([3.0])):
        tensor = torch.full((7, 5), float(rank + 1))
        dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(factor))
        check(torch.equal(tensor, torch.full((7, 5), float(factor) * size * (size + 1) / 2)), f"PREMUL_SUM by {factor}")


def lazy_views(rank, size):
    conjugate = torch.complex(torch.full((4,), float(rank)), torch.ones(4)).conj()
    group = backend()
    group.allreduce([conjugate], dist.AllreduceOptions()).wait()
    total = size * (size - 1) / 2
    expected = torch.complex(torch.full((4,), total), torch.full((4,), -1.0 * size))
    check(torch.equal(conjugate.resolve_conj(), expected), "a conjugate view")


def coalesced(rank, size):
    cpu = torch.device("cpu")
    check(backend().supports_coalescing, "coalescing is supported")
    tensors = [torch.full((n,), float(rank + n)) for n in (1, 10, 1000)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for n, tensor in zip((1, 10, 1000), tensors):
        expected = torch.full((n,), float(sum(r + n for r in range(size))))
        check(torch.equal(tensor, expected), f"all_reduce of {n} in a coalesced call")
    outputs = [torch.zeros(size * n) for n in (2, 3)]
    with dist._coalescing_manager():
        for n, output in zip((2, 3), outputs):
            dist.all_gather_into_tensor(output, torch.full((n,), float(rank)))
    for n, output in zip((2, 3), outputs):
        check(torch.equal(output, torch.arange(size).repeat_interleave(n).float()), f"all_gather of {n} in a coalesced call")
    with dist._coalescing_manager(device=cpu, async_ops=True) as manager:
        backend().allreduce([tensors[0]], dist.AllreduceOptions())
        backend().broadcast([tensors[1]], dist.BroadcastOptions())
    manager.wait()
    with dist._coalescing_manager(device=cpu):
        pass  # a block without calls
    expect(RuntimeError, "startCoalescing", lambda: backend()._end_coalescing())
    expect(ValueError, "empty tensor list", lambda: backend().allreduce_coalesced([], dist.AllreduceCoalescedOptions()))
    expect(ValueError, "invalid tensor type at index 1",
           lambda: backend().allreduce_coalesced([torch.ones(1), torch.ones(1).int()], dist.AllreduceCoalescedOptions()))


def abandoned_block(rank, size):
    """After an exception in a block of coalesced calls, the calls of the block and all calls after it still end."""
    cpu = torch.device("cpu")
    inside = torch.full((4,), float(rank))

    def block():
        with dist._coalescing_manager(device=cpu, async_ops=True):
            backend().allreduce([inside], dist.AllreduceOptions())
            raise KeyError("half way")

    expect(KeyError, "half way", block)
    after = torch.ones(4)
    backend().allreduce([after], dist.AllreduceOptions()).get_future().wait()  # as DDP's reducer waits: on the future, not on the work
    check(torch.equal(after, torch.full((4,), float(size))), "a call after the block")
    check(torch.equal(inside, torch.full((4,), size * (size - 1) / 2)), "the call in the block")
    polled = backend().allreduce([after], dist.AllreduceOptions())
    while not polled.is_completed():
        pass
    with dist._coalescing_manager(device=cpu, async_ops=True) as manager:
        backend().allreduce([inside], dist.AllreduceOptions())
    manager.wait()
    check(torch.equal(inside, torch.full((4,), size * size * (size - 1) / 2)), "a block after the abandoned one")


def completion_hook(rank, size):
    """The completion hook gets every call, in order, and may make calls itself."""
    group, world = dist.new_group(), dist.group.WORLD
    calls = []

    def hook(info):
        if info.seq == 3:
            dist.barrier(group=group)  # on every rank, because a hook may block
        calls.append((info.seq, info.op_type, info.active_duration >= timedelta(0), info.time_finished >= info.time_started))

    expect(ValueError, "waitForPendingWorks: .*hook", world._wait_for_pending_works)
    backend()._enable_collectives_timing() if hasattr(backend(), "_enable_collectives_timing") else world._enable_collectives_timing()
    first = backend()._get_sequence_number_for_group()
    world._register_on_completion_hook(hook)
    expect(ValueError, "registerOnCompletionHook: .*hook", lambda: world._register_on_completion_hook(hook))
    works = [dist.all_reduce(torch.ones(10), async_op=True) for _ in range(20)]
    dist.broadcast(torch.ones(3), src=0)
    for work in works:
        work.wait()
    world._wait_for_pending_works()
    check([seq for seq, *_ in calls] == list(range(first + 1, first + 22)), f"sequence numbers {[seq for seq, *_ in calls]}")
    check(all(measured and ordered for *_, measured, ordered in calls), "times are ordered")
    check(str(calls[0][1]).endswith("ALLREDUCE") and str(calls[20][1]).endswith("BROADCAST"), f"{calls[0][1]}, {calls[20][1]}")


def merged(rank, size):
    """Two groups are merged into one."""
    store = dist.distributed_c10d._get_default_store()
    half = dist.new_group([2 * (rank // 2), 2 * (rank // 2) + 1], use_local_synchronization=True)
    if rank >= 2:
        time.sleep(0.1)
    whole = half.merge_remote_group(dist.PrefixStore("merged/", store), size, timedelta(seconds=30))
    tensor = torch.tensor([1.0])
    whole.allreduce([tensor]).wait()
    check(whole.size() == size and tensor.item() == size, f"the sum of the new group of {whole.size()}: {tensor.item()}")


def barrier_without(rank, size, missing, wait_all):
    shoal.monitored_barrier()
    shoal.monitored_barrier(timeout=timedelta(seconds=20))
    if rank in missing:
        return ""
    try:
        shoal.monitored_barrier(timeout=timedelta(milliseconds=300), wait_all_ranks=wait_all)
    except RuntimeError as error:
        there = dist.new_group([r for r in range(size) if r not in missing], use_local_synchronization=True)
        dist.all_reduce(torch.ones(1), group=there)  # the other ranks can continue
        return str(error)
    raise AssertionError("no error")


def recorded(rank, size):
    dist.all_reduce(torch.ones(3, 5))
    dist.broadcast(torch.ones(2), src=1)
    dist.barrier()
    trace = pickle.loads(shoal.dump_flight_recorder())
    names = [entry["profiling_name"] for entry in trace["entries"]]
    check(names == ["nccl:all_reduce", "nccl:broadcast", "nccl:all_reduce_barrier"], f"recorded {names}")
    first = trace["entries"][0]
    check(first["input_sizes"] == [[3, 5]] and first["input_dtypes"] == ["Float"] and first["state"] == "completed", f"{first}")
    check(first["duration_ms"] >= 0 and first["collective_seq_id"] == 1, "duration and sequence")
    check(any("recorded" in frame["name"] for frame in first["frames"]), "the stack is there")
    check(len(trace["pg_config"]) == 1, f"one group in {trace['pg_config']}")
    if rank == 0:  # a call that hangs
        options = dist.AllreduceOptions()
        options.timeout = timedelta(milliseconds=300)
        expect(dist.DistBackendError, "all_reduce: Timed out", lambda: backend().allreduce([torch.ones(9)], options).wait())
        tell_timeout(rank)
        with open(f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{rank}", "rb") as file:
            last = pickle.load(file)["entries"][-1]
        check(last["state"] == "started" and last["retired"], f"the call that hung: {last}")
    else:
        stay_until_timeout([0])
    return shoal.dump_flight_recorder()


def recorded_unwritable(rank, size):
    """The error of the call stays the same if the trace cannot be written."""
    os.environ["TORCH_FR_DUMP_TEMP_FILE"] = os.path.join(TRACES, "no", "folder", "rank_")  # read when the first trace is written
    dist.all_reduce(torch.ones(3, 5))
    if rank == 0:
        options = dist.AllreduceOptions()
        options.timeout = timedelta(milliseconds=300)
        expect(dist.DistBackendError, "all_reduce: Timed out", lambda: backend().allreduce([torch.ones(9)], options).wait())
        tell_timeout(rank)
        check(not os.path.exists(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + "0"), "the trace could be written")
        check(pickle.loads(shoal.dump_flight_recorder())["entries"][-1]["state"] == "started", "the recorder still has the call")
    else:
        stay_until_timeout([0])


def test_a_work_reports_its_end():
    run_ranks(2, ends_of_a_work)


def test_a_wait_timeout_does_not_end_the_call():
    run_ranks(2, a_wait_with_a_timeout)


def test_the_timeout_of_the_group_can_be_set():
    run_ranks(2, a_timeout_of_the_group)


def test_premultiplied_sum():
    run_ranks(3, premultiplied)


def test_lazy_views():
    run_ranks(2, lazy_views)


def test_completion_hook():
    run_ranks(2, completion_hook)


def test_groups_merge():
    run_ranks(4, merged)


@pytest.mark.parametrize("size", (1, 2, 3))
def test_coalesced_calls(size):
    run_ranks(size, coalesced)
    run_ranks(size, abandoned_block)


def test_monitored_barrier_names_the_first_missing_rank():
    outcomes = run_ranks(4, barrier_without, (2, 3), False)
    assert re.search(r"Rank 2\b.*\bmonitoredBarrier\b.*\b300 ms", outcomes[0]), outcomes[0]
    assert not re.search(r"\b3\b", outcomes[0]), outcomes[0]
    assert re.search(r"Rank 1\b.*\bmonitoredBarrier\b.*Rank 2\b", outcomes[1]), outcomes[1]


def test_monitored_barrier_names_all_missing_ranks():
    message = run_ranks(4, barrier_without, (1, 3), True)[0]
    assert re.search(r"Ranks 1, 3\b.*\bmonitoredBarrier\b", message), message


def test_an_unwritable_trace_changes_no_error():
    run_ranks(2, recorded_unwritable)


def test_pytorchs_tools_read_the_flight_recorder():
    traces = [pickle.loads(trace) for trace in run_ranks(2, recorded)]
    details = {f"rank_{rank}": trace | {"rank": rank, "host_name": "here"} for rank, trace in enumerate(traces)}
    arguments = JobConfig().parse_args(["--allow-incomplete-ranks", "unused"])
    database = build_db(details, arguments, "2.10")
    assert len(database.groups) == 1
    assert [call.pass_check for call in database.collectives[:3]] == [True] * 3
    assert ast.literal_eval(traces[0]["pg_config"].popitem()[1]["ranks"]) == [0, 1]
