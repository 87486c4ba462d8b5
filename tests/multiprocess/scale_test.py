"""Jobs of many ranks on one host start and sum, and need descriptors and memory as small jobs do."""
import json
import os
import resource
import subprocess

import pytest

import support

BLOCKS = 1
MOST_DESCRIPTORS = 40
MOST_HEAP_BYTES = 1_500_000
MOST_ADDRESS_SPACE_BYTES = 500_000_000_000


class TestScale:
    # While a job starts, one rank of each 128 serves the others, so it has a connection with each.
    @pytest.mark.parametrize("ranks, open_files", ((128, 224), pytest.param(512, 256, marks=pytest.mark.long)))
    def test_many_ranks_start_and_sum_with_few_open_files(self, ranks, open_files):
        command = [os.path.join(support.BUILD, "bin/shoal"), "run", "-n", str(ranks), "--", os.path.join(support.BUILD, "bin/scaling_shoal"),
                   str(BLOCKS)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files)))
        assert done.returncode == 0, done.stderr
        figures = json.loads(done.stdout)  # the program checks the sums
        assert figures["ranks"] == ranks and figures["all_reduce_us"] > 0
        assert figures["descriptors"] <= MOST_DESCRIPTORS
        assert figures["heap_bytes"] <= MOST_HEAP_BYTES
        assert figures["address_space_bytes"] <= MOST_ADDRESS_SPACE_BYTES
