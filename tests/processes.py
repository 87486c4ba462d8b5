"""Finds the processes that a test has started by a variable of their environment."""
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
    """Ids of the processes with `marker`, as soon as ready(ids) is true or the time has passed."""
    deadline = time.monotonic() + within_s
    while not ready(found := with_marker(marker)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


@contextlib.contextmanager
def ended_after(marker):
    """Kills the processes with `marker` that a failed test leaves: CTest would wait for them, since they hold its streams open."""
    try:
        yield
    finally:
        for process in with_marker(marker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
