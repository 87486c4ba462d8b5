"""Signals reach Python while it waits for other ranks, and Python exits with its own status also with calls in flight."""
import json
import os
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
SIGNALS = ["signals", "start_up"]
# The exit statuses of the ranks.
ENDS = {
    "done": [0, 0],
    "left_open": [0, 0],
    "pending": [0, 0],
    "pending_chain": [0, 0],
    "pending_together": [0, 0],
    "exception": [1, 0],
    "failed": [3, 7],
    "daemon_threads": [5, 0],
}


@pytest.fixture(scope="module")
def outcome():
    """Runs all cases in one process that has loaded torch and forks their ranks."""
    done = subprocess.run([sys.executable, os.path.join(HERE, "ends.py"), *SIGNALS, *ENDS], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.parametrize("case", SIGNALS)
def test_signal_handlers_run_while_a_call_waits(outcome, case):
    statuses, errors = outcome
    assert statuses[case] == [0, 0], errors


@pytest.mark.parametrize("case", ENDS)
def test_python_exits_with_its_own_status(outcome, case):
    statuses, errors = outcome
    assert statuses[case] == ENDS[case], errors
