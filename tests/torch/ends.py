"""Ranks that a signal interrupts, or whose Python ends with calls in flight. ends_test.py runs this as a program.

`ends.py CASE...` forks two ranks for each case. Each runs its part and ends like a Python program. Prints the ranks' exit statuses by case,
as JSON. A rank whose check fails prints the error and has exit status 1.
"""
import gc
import json
import os
import signal
import sys
import tempfile
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import shoal  # noqa: F401  (registers the backend)
from ranks import check, expect

torch.set_num_threads(1)  # its threads do not survive the fork
LONG_S = 60  # the group's timeout: much longer than the tested events take
PEER_TIMEOUT = timedelta(seconds=15)  # for waits for the other rank


class Preempted(Exception):
    pass


def raises(kind):
    def handler(number, frame):
        raise kind("node goes away")

    return handler


def after(seconds, number, handler):
    """Sends this process signal `number` in `seconds`. An exception of `handler` leaves the call that waits then."""
    signal.signal(number, handler)
    threading.Timer(seconds, os.kill, [os.getpid(), number]).start()


def expect_at_once(kind, call):
    """call() must raise a `kind` long before the group's timeout."""
    begin = time.monotonic()
    expect(kind, "", call)
    check(time.monotonic() - begin < LONG_S / 4, f"raised after {time.monotonic() - begin} s")


def interrupts(call):
    """Interrupts rank 0 in call(group), which waits for rank 1. Rank 1 then gets an error that names rank 0 and the cause.

    Rank 1 calls recv, because the same collective could still succeed there, and another one could be a mismatch.
    """

    def body(rank, group, store):
        if rank == 0:
            after(0.2, signal.SIGUSR1, raises(Preempted))
            expect_at_once(Preempted, lambda: call(group))
            store.set("interrupted", "")
        else:
            store.wait(["interrupted"], PEER_TIMEOUT)
            expect(RuntimeError, "rank 0.*Preempted: node goes away", lambda: dist.recv(torch.ones(1), src=0, group=group))

    return body


def keyboard(rank, group, store):
    if rank == 0:
        after(0.2, signal.SIGINT, signal.default_int_handler)
        expect_at_once(KeyboardInterrupt, lambda: dist.recv(torch.ones(1), src=1, group=group))
        store.set("interrupted", "")
    else:
        store.wait(["interrupted"], PEER_TIMEOUT)
        expect(RuntimeError, "rank 0.*KeyboardInterrupt", lambda: dist.recv(torch.ones(1), src=0, group=group))


def handler_that_returns(rank, group, store):
    """The call continues. It ends because the handler lets rank 1 join it."""
    if rank == 0:
        after(0.2, signal.SIGUSR1, lambda number, frame: store.set("handled", ""))
    else:
        store.wait(["handled"], PEER_TIMEOUT)
    tensor = torch.ones(5)
    dist.all_reduce(tensor, group=group)
    check(tensor.tolist() == [2.0] * 5, "the sum")


def other_threads(rank, group, store):
    """A call in another thread continues, and handlers run in the main thread."""
    seen = threading.Event()
    if rank == 0:
        after(0.1, signal.SIGUSR1, lambda number, frame: seen.set())
        thread = threading.Thread(target=dist.barrier, args=[group])
        thread.start()
        check(seen.wait(PEER_TIMEOUT.total_seconds()), "the main thread has run the handler")
        store.set("handled", "")
        thread.join()
    else:
        store.wait(["handled"], PEER_TIMEOUT)
        dist.barrier(group)


def quiet_threads(rank, group, store):
    """The plugin's thread, which a callback starts, blocks the program's signals."""
    if rank == 1:
        store.wait(["attached"], PEER_TIMEOUT)
        dist.barrier(group)
        return
    done = dist.barrier(group, async_op=True).get_future().then(lambda future: None)
    store.set("attached", "")
    done.wait()
    sigterm = 1 << (signal.SIGTERM - 1)
    blocked = {}
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/status") as file:
            status = dict(line.split(":", 1) for line in file.read().splitlines())
        blocked[status["Name"].strip()] = int(status["SigBlk"], 16) & sigterm != 0
    check(blocked.get("shoal-callbacks") is True, f"the callbacks' thread blocks SIGTERM: {blocked}")


SIGNALS = {
    "keyboard": keyboard,
    "all_reduce": interrupts(lambda group: dist.all_reduce(torch.ones(3), group=group)),
    "work": interrupts(lambda group: dist.all_reduce(torch.ones(3), group=group, async_op=True).wait(timedelta(seconds=LONG_S - 1))),
    "barrier": interrupts(dist.barrier),
    "monitored_barrier": interrupts(shoal.monitored_barrier),
    "sparse": interrupts(lambda group: dist.all_reduce(torch.eye(2).to_sparse(), group=group)),
    "coalesced": interrupts(lambda group: dist.all_reduce_coalesced([torch.ones(3), torch.ones(2)], group=group)),
    "handler_that_returns": handler_that_returns,
    "other_threads": other_threads,
    "quiet_threads": quiet_threads,
}


def signals(rank, store):
    """Runs all of SIGNALS, each in its own group."""
    for name, body in SIGNALS.items():
        print(f"rank {rank}: {name}", file=sys.stderr, flush=True)
        body(rank, dist.new_group([0, 1]), dist.PrefixStore(name, store))


def start_up(rank, folder):
    """Interrupts rank 0 while it waits for rank 1 at startup."""
    if rank == 1:
        return
    after(0.2, signal.SIGINT, signal.default_int_handler)
    expect_at_once(KeyboardInterrupt, lambda: join(rank, folder))


def done(rank, store):
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


def left_open(rank, store):
    dist.all_reduce(torch.ones(1), async_op=True).get_future().then(lambda future: None).wait()


def with_callback(work, store, key):
    """Adds a callback, which must run with the failure before Python ends."""

    def callback(future):
        try:
            future.value()
        except RuntimeError:
            store.set(key, "")

    work.get_future().add_done_callback(callback)


def expect_callback(rank, store):
    if rank == 1:
        store.wait(["callback"], PEER_TIMEOUT)


def pending(rank, store):
    if rank == 0:
        with_callback(dist.all_reduce(torch.ones(1), async_op=True), store, "callback")
    expect_callback(rank, store)


def pending_chain(rank, store):
    """The callback waits for a call that never ends by itself."""
    if rank == 1:
        store.wait(["attached"], PEER_TIMEOUT)
        dist.all_reduce(torch.ones(1))
        return expect_callback(rank, store)
    begun = threading.Event()

    def callback(future):
        begun.set()
        try:
            dist.all_reduce(torch.ones(2))
        except RuntimeError:
            store.set("callback", "")

    dist.all_reduce(torch.ones(1), async_op=True).get_future().add_done_callback(callback)
    store.set("attached", "")
    check(begun.wait(PEER_TIMEOUT.total_seconds()), "the callback runs")
    time.sleep(0.1)  # so that it probably waits


def pending_together(rank, store):
    if rank == 0:
        tensors = [torch.ones(1), torch.ones(2)]
        with dist._coalescing_manager(async_ops=True) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        with_callback(manager.works[0], store, "callback")
        dist.irecv(torch.ones(1), src=1).get_future().then(lambda future: None)
    expect_callback(rank, store)


def exception(rank, store):
    if rank == 0:
        with_callback(dist.all_reduce(torch.ones(1), async_op=True), store, "callback")
        raise KeyError("the program's own failure")
    expect_callback(rank, store)


def failed(rank, store):
    if rank == 1:
        os._exit(7)
    work = dist.all_reduce(torch.ones(1), async_op=True)
    callbacks = []
    work.get_future().add_done_callback(lambda future: callbacks.append(future))
    expect(RuntimeError, "rank 1", work.wait)
    sys.exit(3)


def daemon_threads(rank, store):
    if rank == 0:
        for call in (lambda: dist.recv(torch.ones(1), src=1), lambda: dist.all_reduce(torch.ones(1))):
            threading.Thread(target=call, daemon=True).start()
        time.sleep(0.2)
        sys.exit(5)
    expect(RuntimeError, "rank 0", lambda: dist.recv(torch.ones(1), src=0, tag=3))


CASES = {
    "signals": signals,
    "start_up": start_up,
    "done": done,
    "left_open": left_open,
    "pending": pending,
    "pending_chain": pending_chain,
    "pending_together": pending_together,
    "exception": exception,
    "failed": failed,
    "daemon_threads": daemon_threads,
}


def join(rank, folder):
    store = dist.FileStore(os.path.join(folder, "store"), 2)
    dist.init_process_group("shoal", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=LONG_S))


def run(case, rank, folder):
    if CASES[case] is start_up:
        return start_up(rank, folder)
    join(rank, folder)
    CASES[case](rank, dist.distributed_c10d._get_default_store())


def fork_ranks(case, folder):
    """(pids of both ranks, None) in the parent, ([], rank) in a rank."""
    numbers = []
    for rank in range(2):
        number = os.fork()
        if number == 0:
            return [], rank
        numbers.append(number)
    return numbers, None


def exit_status(number):
    _, status = os.waitpid(number, 0)
    return os.waitstatus_to_exitcode(status)


gc.freeze()  # the end of a rank collects what the rank has made, not all objects of torch once more
statuses = {}
for case in sys.argv[1:]:
    folder = tempfile.mkdtemp(prefix="shoal-ends-")
    ranks, rank = fork_ranks(case, folder)
    if rank is not None:
        run(case, rank, folder)
        break  # the rank ends like a program
    statuses[case] = [exit_status(number) for number in ranks]
else:
    print(json.dumps(statuses))
