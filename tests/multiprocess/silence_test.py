"""A host that vanishes without a word: its only link is cut while all_reduces run, and while the others wait for it."""
import os
import re
import subprocess
import time
import unittest

import cases

CLUSTER = os.path.join(cases.REPOSITORY, "bench/cluster")
PERF = os.path.join(cases.BUILD, "bin/shoal_perf")
CUT_S = 6
LOST_AFTER_S = 6
NOTICED_S = 9
ROUNDS = ["--rounds", "10000"]  # more than there is time for
ONE_IS_LATE = '[ "$SHOAL_RANK" != 2 ] || sleep 15; exec "$0" "$@"'
STOPPED = 'if [ "$SHOAL_RANK" = 0 ]; then (sleep 3; kill -STOP $$) & fi; exec "$0" "$@"'


@unittest.skipIf(cases.cluster_complaint(), cases.cluster_complaint())
class Silence(unittest.TestCase):
    def lines_after_cut(self, *command):
        """(seconds since the cut, line) of all that three hosts say after node0 has lost its link."""
        options = ["--rate", "200mbit", "--cut", f"0@{CUT_S}", "--prefix", "--grace", "10", "--timeout", "60"]
        heard, cut = [], None
        with subprocess.Popen([CLUSTER, "3x1", *options, "--", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              stdin=subprocess.DEVNULL, env=os.environ | {"SHOAL_LOST_AFTER": str(LOST_AFTER_S)}) as running:
            for line in running.stdout:
                if "cutting rail 0 of node0" in line:
                    cut = time.monotonic()
                elif cut is not None:
                    heard.append((time.monotonic() - cut, line.rstrip()))
        self.assertIsNotNone(cut, "the ranks ended before the cut: nothing was shown")
        self.assertEqual(running.returncode, 1, heard)
        return heard

    def check_that_rank_0_is_named(self, *command, by=(1, 2), last_answer_s=1):
        """`last_answer_s`: how long before the cut rank 0 may have answered for the last time."""
        heard = self.lines_after_cut(*command)
        for rank in by:
            named = [(seconds, line) for seconds, line in heard
                     if f"[node{rank} rank {rank}]" in line and re.search("peer_failed: (start-up .*: )?rank 0", line)]
            self.assertTrue(named, heard)
            print(f"rank {rank} after {named[0][0]:.1f} s: {named[0][1]}", flush=True)
            self.assertLess(named[0][0], NOTICED_S, heard)
            self.assertGreater(named[0][0], LOST_AFTER_S - last_answer_s, "that is too soon: the link might have come back")

    def test_while_large_messages_are_under_way(self):
        self.check_that_rank_0_is_named(PERF, "-b", "4M", "-e", "4M", *ROUNDS)

    def test_while_small_messages_are_under_way(self):
        self.check_that_rank_0_is_named(PERF, "-b", "8", "-e", "8", *ROUNDS)

    def test_while_the_others_wait_for_it(self):
        self.check_that_rank_0_is_named("sh", "-c", STOPPED, PERF, "-b", "4M", "-e", "4M", *ROUNDS)

    def test_while_the_job_starts(self):
        # Who waits is silent but for a probe every 2 s.
        self.check_that_rank_0_is_named("sh", "-c", ONE_IS_LATE, PERF, "-b", "8", "-e", "8", by=[1], last_answer_s=2.2)


if __name__ == "__main__":
    cases.main()
