"""The processes that a test has started, found by a variable of their environment."""
import contextlib
import os
import signal
import time


def with_marker(marker):
    """Process ids whose environment holds `marker`, NAME=VALUE."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
            if marker.encode() in file.read():
                found.append(int(name))
    return found


def once(marker, ready, within_s=20):
    """Those with `marker` once `ready(ids)` holds, or those that are there after that time."""
    deadline = time.monotonic() + within_s
    while not ready(found := with_marker(marker)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


@contextlib.contextmanager
def ended_after(marker):
    """Nobody with `marker` outlives a failed test: whoever did would hold its streams open, and CTest would wait for those."""
    try:
        yield
    finally:
        for process in with_marker(marker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
