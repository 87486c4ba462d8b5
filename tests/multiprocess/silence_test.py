"""A host vanishes without closing its connections: its only link is cut while calls run, while peers wait for it, and at start-up."""
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
DETECTED_S = 9
ROUNDS = ["--rounds", "10000"]  # more than complete before the cut
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
        output, cut = [], None
        with subprocess.Popen([CLUSTER, "3x1", *options, "--", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              stdin=subprocess.DEVNULL, env=os.environ | {"SHOAL_LOST_AFTER": str(LOST_AFTER_S)}) as running:
            for line in running.stdout:
                if "rail 0 of node0" in line:
                    cut = time.monotonic()
                elif cut is not None:
                    output.append((time.monotonic() - cut, line.rstrip()))
        assert cut is not None, "the ranks ended before the cut"
        assert running.returncode == 1, output
        return output

    def check_that_node0_is_named(self, *command, lost_rank="rank 0", by=(1, 2), last_answer_s=1, detected_s=DETECTED_S):
        """`lost_rank`: the rank of node0; `by`: nodes that must report it. `last_answer_s`: how long before the cut node0 may have answered last."""
        output = self.lines_after_cut(*command)
        failure = rf"peer_failed: (rank 0 aborted the startup: )?\D*{lost_rank}\b"
        for node in by:
            named = [(seconds, line) for seconds, line in output
                     if f"[node{node} rank {node}]" in line and re.search(failure, line)]
            assert named, output
            print(f"node{node} after {named[0][0]:.1f} s: {named[0][1]}", flush=True)
            assert named[0][0] < detected_s, output
            assert named[0][0] > LOST_AFTER_S - last_answer_s, "too early: the link might have come back"

    def test_a_silent_host_is_lost_with_large_messages_in_flight(self):
        self.check_that_node0_is_named(PERF, "-b", "4M", "-e", "4M", *ROUNDS)

    @pytest.mark.long
    def test_a_silent_host_is_lost_with_small_messages_in_flight(self):
        self.check_that_node0_is_named(PERF, "-b", "8", "-e", "8", *ROUNDS)

    @pytest.mark.long
    def test_a_silent_host_is_lost_while_its_peers_wait(self):
        self.check_that_node0_is_named("sh", "-c", STOPPED, PERF, "-b", "4M", "-e", "4M", *ROUNDS)

    def test_a_host_silent_at_startup_is_lost(self):
        # A rank that waits sends nothing but a probe every 2 s.
        self.check_that_node0_is_named("sh", "-c", ONE_IS_LATE, PERF, "-b", "8", "-e", "8", by=[1], last_answer_s=2.2)

    @pytest.mark.long
    def test_a_host_silent_at_startup_is_lost_with_a_remote_store(self):
        # The store detects the failure, and rank 0 ends at once. Rank 1 comes after that, and no store is there any more.
        self.check_that_node0_is_named("sh", "-c", TURNED_AND_LATE, PERF, "-b", "8", "-e", "8", lost_rank="rank 2", by=[2], last_answer_s=2.2)
