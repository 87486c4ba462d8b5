"""Process groups start at a c10d store that has served earlier starts: in one process, and in new processes after a failure."""
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import shoal
from ranks import check, context, expect

SEED = int(os.environ.get("SHOAL_TEST_SEED", time.time_ns() % 1_000_000))
LIMIT_S = 60


def start(store, rank, size, timeout_s=LIMIT_S):
    dist.init_process_group("shoal", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s))


def check_sum(rank, size):
    tensor = torch.tensor([rank + 1.0])
    dist.all_reduce(tensor)
    check(tensor.item() == size * (size + 1) / 2, f"rank {rank} of {size}: the sum is {tensor.item()}")


class Generation:
    """Processes that call body(store, rank, *arguments), each with its own connection to the store at `port`."""

    def __init__(self, port, ranks, body, *arguments):
        self.processes = []
        for rank in ranks:
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=self._run, args=(port, rank, body, arguments, sender))
            process.start()
            sender.close()
            self.processes.append((process, receiver))

    @staticmethod
    def _run(port, rank, body, arguments, pipe):
        try:
            store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=LIMIT_S))
            body(store, rank, *arguments)
            pipe.send("ok")
        except BaseException as error:  # noqa: BLE001  (the parent reports everything)
            pipe.send(f"{type(error).__name__}: {error}")
        os._exit(0)

    def results(self):
        """"ok", or the error of each rank."""
        found = []
        for _, receiver in self.processes:
            try:
                found.append(receiver.recv() if receiver.poll(LIMIT_S) else "no result")
            except EOFError:
                found.append("ended")
        self.kill()
        return found

    def kill(self):
        for process, _ in self.processes:
            process.kill()
        for process, _ in self.processes:
            process.join()


def serve(pipe):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipe.send(store.port)
    pipe.poll(None)  # until the parent closes its end
    os._exit(0)


@pytest.fixture
def port():
    """The port of a store that outlives all starts, like torchrun's. The server has threads, so it runs in a process that does not fork."""
    here, there = context.Pipe()
    server = context.Process(target=serve, args=[there])
    server.start()
    there.close()
    yield here.recv()
    server.kill()
    server.join()


def many_rounds(store, rank, rounds):
    for number in range(rounds):
        size = 3 - number % 2  # rank 2 takes part in every second round
        if rank >= size:
            continue
        start(store, rank, size)
        check_sum(rank, size)
        if number % 5 == 4:
            store.set(f"sum {number} of {rank}", "")  # an abort ends calls of other ranks, too
            store.wait([f"sum {number} of {other}" for other in range(size)])
            dist.distributed_c10d._abort_process_group()
        else:
            dist.destroy_process_group()


@pytest.mark.long
def test_fifty_starts_in_one_process(port):
    assert Generation(port, range(3), many_rounds, 50).results() == ["ok"] * 3


def one_start(store, rank, size):
    start(store, rank, size)
    check_sum(rank, size)
    dist.destroy_process_group()


def test_a_start_succeeds_after_ranks_died_at_any_moment(port):
    """Like torchrun's restarts: one rank dies, the others are killed, and new processes start, possibly fewer."""
    print(f"SHOAL_TEST_SEED={SEED}", flush=True)
    generator = random.Random(SEED)
    for _ in range(6):
        size = generator.randint(2, 4)
        generation = Generation(port, range(size), one_start, size)
        victim, _ = generation.processes[generator.randrange(size)]
        victim.join(generator.choice((0, 0.005, 0.01, 0.02, 0.04, 0.08, 0.2)))  # it may have succeeded before
        victim.kill()
        generation.kill()
        size = generator.randint(2, 4)
        assert Generation(port, range(size), one_start, size).results() == ["ok"] * size


def barrier_with_missing_rank(store, rank, absent):
    start(store, rank, 2)
    if rank in absent:
        expect(Exception, r"monitoredBarrier", lambda: shoal.monitored_barrier(timeout=timedelta(seconds=0.2)))
    else:
        check(store.get(f"rank {1 - rank} is done"), "the other rank has ended its barrier")
    store.set(f"rank {rank} is done", "yes")


def barrier_of_all(store, rank):
    start(store, rank, 2)
    shoal.monitored_barrier()
    group = dist.new_group([0, 1])
    shoal.monitored_barrier(group)
    dist.destroy_process_group()


def test_a_monitored_barrier_ignores_earlier_starts(port):
    assert Generation(port, range(2), barrier_of_all).results() == ["ok"] * 2
    assert Generation(port, range(2), barrier_with_missing_rank, [0]).results() == ["ok"] * 2


WORKER = """
import os, signal, sys
import torch, torch.distributed as dist, shoal
restart, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
plan = sys.argv[1].split(",")
fault = plan[restart] if restart < len(plan) else ""
if fault == "raise-early" and rank == 0:
    raise RuntimeError("as planned")
dist.init_process_group("shoal")
if fault == "kill" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
tensor = torch.ones(1)
dist.all_reduce(tensor)
assert tensor.item() == dist.get_world_size()
if fault == "raise":
    raise RuntimeError("as planned")
dist.destroy_process_group()
if rank == 0:
    print(f"done after {restart} restarts", flush=True)
"""


@pytest.mark.parametrize("launch, plan", (
    (["--standalone"], "kill"),
    pytest.param(["--standalone"], "raise-early,raise", marks=pytest.mark.long),
    pytest.param(["--standalone"], ",".join(["kill", "raise"] * 25), marks=pytest.mark.long, id="fifty"),
    pytest.param(["--master-addr=127.0.0.1", "--master-port"], "raise-early,kill,raise", marks=pytest.mark.long)))
def test_torchrun_restarts_the_workers(port, launch, plan):
    if "--standalone" not in launch:
        free = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        launch = [*launch, str(free.port)]
        del free
    restarts = len(plan.split(","))
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "worker.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(WORKER)
        done = subprocess.run([sys.executable, "-m", "torch.distributed.run", *launch, "--nproc-per-node=2", f"--max-restarts={restarts}",
                               "--monitor-interval=0.1", script, plan], capture_output=True, text=True, timeout=(1 + restarts) * LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"done after {restarts} restarts") == 1, done.stdout + done.stderr


def wrong_size(store, rank, sizes):
    start(store, rank, sizes[rank])


@pytest.mark.parametrize("sizes", ([2, 3], [3, 2], [2, 2, 3]))
def test_all_ranks_report_different_sizes(port, sizes):
    began = time.monotonic()
    if sizes == [2, 2, 3]:  # rank 0's group would be complete without rank 2; so rank 1 stays away
        first = Generation(port, [0, 2], wrong_size, sizes)
    else:
        first = Generation(port, range(len(sizes)), wrong_size, sizes)
    for result in first.results():
        for size in set(sizes):
            assert f"world size {size}" in result, result
    assert time.monotonic() - began < 0.5 * LIMIT_S


def rank_twice(store, place, ranks):
    # Where both ranks 0 have failed before rank 1 comes, it counts for the next start.
    waits = ranks.count(0) == 2 and ranks[place] == 0
    end = time.monotonic() + LIMIT_S
    while waits and not any(key.endswith("shoal/joins/1") for key in store.list_keys()) and time.monotonic() < end:
        time.sleep(0.01)
    start(store, ranks[place], 3)


@pytest.mark.parametrize("ranks", ([0, 1, 1], [0, 0, 1], [1, 1, 0]))
def test_all_ranks_report_a_duplicate_rank(port, ranks):
    began = time.monotonic()
    generation = Generation(port, range(3), rank_twice, ranks)
    twice = [process.pid for process, _ in generation.processes]
    twice = [pid for pid, rank in zip(twice, ranks, strict=True) if ranks.count(rank) == 2]
    for result in generation.results():
        for pid in twice:
            assert f"process {pid} " in result, result
    assert time.monotonic() - began < 0.5 * LIMIT_S


def alone(store, rank, size, log):
    with open(log, "w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 2)
    os.environ["SHOAL_WARN_AFTER"] = "0.3"
    start(store, rank, size, timeout_s=1.5)


def test_a_long_start_names_the_missing_ranks(port, tmp_path):
    log = tmp_path / "stderr"
    [result] = Generation(port, [1], alone, 3, log).results()
    assert "rank 1 of 3" in result and "ranks 0, 2" in result, result
    warnings = [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("shoal: startup: rank 1 of 3 ")]
    assert len(warnings) >= 2, "after 0.3 s and after 0.9 s"
    assert all("ranks 0, 2" in line for line in warnings), warnings


def test_a_rank_beyond_a_complete_start_gets_both_sizes(port, tmp_path):
    """It may be a rank of the next start, which may have more ranks; so its messages name both sizes."""
    assert Generation(port, range(2), one_start, 2).results() == ["ok"] * 2
    log = tmp_path / "stderr"
    [result] = Generation(port, [2], alone, 3, log).results()
    for text in (result, log.read_text(encoding="utf-8")):
        assert "rank 2 of 3" in text and "world size 2" in text, text
