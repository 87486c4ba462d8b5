"""A host that is lost without a message: its only link is cut while all_reduces run, and while the other hosts wait for it."""
import os
import re
import subprocess
import time

import pytest

import support

CLUSTER = os.path.join(support.REPOSITORY, "bench/cluster")
PERF = os.path.join(support.BUILD, "bin/shoal_perf")
CUT_S = 6
LOST_AFTER_S = 6
NOTICED_S = 9
ROUNDS = ["--rounds", "10000"]  # more than fit into the time
LATE_S = 15
ONE_IS_LATE = f'[ "$SHOAL_RANK" != 2 ] || sleep {LATE_S}; exec "$0" "$@"'
# Rank 0, which serves the store, runs on node2, and rank 2 on node0. Rank 1 is late.
TURNED_AND_LATE = ('[ "$SHOAL_RANK" != 1 ] || sleep %d; export SHOAL_RANK=$((2 - SHOAL_RANK)) SHOAL_MASTER_ADDR=10.77.0.3; exec "$0" "$@"'
                   % LATE_S)
STOPPED = 'if [ "$SHOAL_RANK" = 0 ]; then (sleep 3; kill -STOP $$) & fi; exec "$0" "$@"'


pytestmark = pytest.mark.usefixtures("emulated_hosts")


class TestSilence:
    def lines_after_cut(self, *command):
        """(seconds since the cut, line) of all output of three hosts after node0 has lost its link."""
        options = ["--rate", "200mbit", "--cut", f"0@{CUT_S}", "--prefix", "--grace", "10", "--timeout", "60"]
        heard, cut = [], None
        with subprocess.Popen([CLUSTER, "3x1", *options, "--", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              stdin=subprocess.DEVNULL, env=os.environ | {"SHOAL_LOST_AFTER": str(LOST_AFTER_S)}) as running:
            for line in running.stdout:
                if "rail 0 of node0" in line:
                    cut = time.monotonic()
                elif cut is not None:
                    heard.append((time.monotonic() - cut, line.rstrip()))
        assert cut is not None, "the ranks ended before the cut"
        assert running.returncode == 1, heard
        return heard

    def check_that_node0_is_named(self, *command, whose="rank 0", by=(1, 2), last_answer_s=1, noticed_s=NOTICED_S):
        """`whose`: the rank of node0, `by`: other nodes. `last_answer_s`: how long before the cut node0 may have answered last."""
        heard = self.lines_after_cut(*command)
        for node in by:
            named = [(seconds, line) for seconds, line in heard
                     if f"[node{node} rank {node}]" in line and re.search(rf"peer_failed: \D*{whose}\b", line)]
            assert named, heard
            print(f"node{node} after {named[0][0]:.1f} s: {named[0][1]}", flush=True)
            assert named[0][0] < noticed_s, heard
            assert named[0][0] > LOST_AFTER_S - last_answer_s, "too early: the link might have come back"

    def test_while_large_messages_are_in_flight(self):
        self.check_that_node0_is_named(PERF, "-b", "4M", "-e", "4M", *ROUNDS)

    @pytest.mark.long
    def test_while_small_messages_are_in_flight(self):
        self.check_that_node0_is_named(PERF, "-b", "8", "-e", "8", *ROUNDS)

    @pytest.mark.long
    def test_while_the_other_hosts_wait_for_it(self):
        self.check_that_node0_is_named("sh", "-c", STOPPED, PERF, "-b", "4M", "-e", "4M", *ROUNDS)

    def test_while_the_job_starts(self):
        # A rank that waits sends nothing but a probe every 2 s.
        self.check_that_node0_is_named("sh", "-c", ONE_IS_LATE, PERF, "-b", "8", "-e", "8", by=[1], last_answer_s=2.2)

    @pytest.mark.long
    def test_while_the_job_starts_with_the_store_elsewhere(self):
        # The store notices the failure. Rank 1, for which the others wait, gets the error when it has joined.
        comes_s = LATE_S - CUT_S
        self.check_that_node0_is_named("sh", "-c", TURNED_AND_LATE, PERF, "-b", "8", "-e", "8", whose="rank 2", noticed_s=comes_s + 3)
