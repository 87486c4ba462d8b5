"""A job of 128 ranks on one host starts, sums, and needs descriptors and memory as a small job does."""
import json
import os
import subprocess

import support

RANKS = 128
BLOCKS = 1
MOST_DESCRIPTORS = 40
MOST_HEAP_BYTES = 1_500_000
MOST_ADDRESS_SPACE_BYTES = 500_000_000_000


class TestScale:
    def test_128_ranks_start_and_sum(self):
        command = [os.path.join(support.BUILD, "bin/shoal"), "run", "-n", str(RANKS), "--", os.path.join(support.BUILD, "bin/scaling_shoal"),
                   str(BLOCKS)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        figures = json.loads(done.stdout)  # the program checks the sums
        assert figures["ranks"] == RANKS and figures["all_reduce_us"] > 0
        assert figures["descriptors"] <= MOST_DESCRIPTORS
        assert figures["heap_bytes"] <= MOST_HEAP_BYTES
        assert figures["address_space_bytes"] <= MOST_ADDRESS_SPACE_BYTES
