"""A job of 128 ranks on one host starts, sums, and needs few descriptors for each peer."""
import json
import os
import subprocess

import support

RANKS = 128
BLOCKS = 1
DESCRIPTORS_OF_PEER = 2
OTHER_DESCRIPTORS = 60


class TestScale:
    def test_128_ranks_start_and_sum(self):
        command = [os.path.join(support.BUILD, "bin/shoal"), "run", "-n", str(RANKS), "--", os.path.join(support.BUILD, "bin/scaling_shoal"),
                   str(BLOCKS)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        figures = json.loads(done.stdout)  # the program checks the sums
        assert figures["ranks"] == RANKS and figures["all_reduce_us"] > 0
        assert figures["descriptors"] <= DESCRIPTORS_OF_PEER * (RANKS - 1) + OTHER_DESCRIPTORS
