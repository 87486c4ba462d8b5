"""Forks ranks that join a torch.distributed group of backend "shoal", and returns their results; and checks for use in a rank."""
import gc
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

import shoal  # noqa: F401  (registers the backend)

# The parent must not start torch's threads: they do not survive the fork that makes the ranks.
torch.set_num_threads(1)
context = multiprocessing.get_context("fork")


def check(condition, message):
    if not condition:
        raise AssertionError(message)


def expect(kind, pattern, call):
    """call() must raise a `kind` with a message that matches."""
    try:
        call()
    except kind as error:
        check(re.search(pattern, str(error)), f"no match of {pattern!r} in: {error}")
        return
    raise AssertionError(f"no {kind.__name__} that matches {pattern!r}")


def _child(body, rank, size, folder, timeout_s, arguments, pipe):
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        store = dist.FileStore(os.path.join(folder, "store"), size)
        dist.init_process_group("shoal", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s))
        result = body(rank, size, *arguments)
        if dist.is_initialized():
            dist.destroy_process_group()
        pipe.send(("ok", result))
    except BaseException:  # noqa: BLE001  (the parent reports everything)
        pipe.send(("error", traceback.format_exc()))
    pipe.close()
    sys.stdout.flush()
    os._exit(0)


def run_ranks(size, body, *arguments, timeout_s=60, deadline_s=100):
    """Runs body(rank, size, *arguments) on `size` ranks and returns their results. AssertionError if a rank raises, ends early or hangs."""
    gc.freeze()  # else each rank's collector would go through all objects of torch, and so copy their pages
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(size):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_child, args=(body, rank, size, folder, timeout_s, arguments, sender))
            process.start()
            sender.close()
            ranks.append((process, receiver))
        end = time.monotonic() + deadline_s
        outcomes = []
        for process, receiver in ranks:
            outcome = ("error", f"no result within {deadline_s} s")
            if receiver.poll(max(0.0, end - time.monotonic())):
                try:
                    outcome = receiver.recv()
                except EOFError:
                    outcome = ("error", "ended without a result")
            outcomes.append(outcome)
        for process, _ in ranks:
            process.join(max(0.1, min(10.0, end - time.monotonic())))
            if process.is_alive():
                process.kill()
                process.join()
    failures = [f"rank {rank}: {text}" for rank, (kind, text) in enumerate(outcomes) if kind == "error"]
    if failures:
        raise AssertionError("\n".join(failures))
    return [value for _, value in outcomes]
