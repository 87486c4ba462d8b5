"""Jobs of many ranks on one host, and on many hosts, start and sum, and need descriptors and memory as small jobs do."""
import json
import os
import re
import resource
import signal
import subprocess
import time

import pytest

import support

BLOCKS = 1
MOST_DESCRIPTORS = 40
MOST_HEAP_BYTES = 1_500_000
MOST_ADDRESS_SPACE_BYTES = 500_000_000_000
CLUSTER = os.path.join(support.REPOSITORY, "bench/cluster")
SHAPE, RANKS = "64x2", 128
MOST_DESCRIPTORS_OF_A_KEEPER = 64
NAMED_WITHIN_S = 2


def process_of(rank, program):
    """The process that runs `program` as a rank of a job of bench/cluster."""
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/environ", "rb") as file:
                is_rank = f"SHOAL_RANK={rank}".encode() in file.read().split(b"\0")
            if is_rank and os.path.basename(os.readlink(f"/proc/{process}/exe")) == program:
                return int(process)
        except OSError:
            continue  # it has ended
    raise AssertionError(f"no process of {program} is rank {rank}")


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


@pytest.mark.long
@pytest.mark.usefixtures("emulated_hosts")
class TestManyHosts:
    def test_ranks_start_and_sum_with_few_descriptors(self):
        command = [CLUSTER, SHAPE, "--rate", "none", "--timeout", "200", "--", os.path.join(support.BUILD, "bin/scaling_shoal"), str(BLOCKS)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        figures = json.loads(done.stdout)
        print(figures)
        assert figures["ranks"] == RANKS and figures["descriptors"] <= MOST_DESCRIPTORS_OF_A_KEEPER

    @pytest.mark.parametrize("victim", (77, 0, 64))  # 77 has no connections with other hosts; 0 and 64 are keepers
    def test_killed_rank_is_named_by_all_hosts(self, victim):
        named = {}
        with subprocess.Popen([CLUSTER, SHAPE, "--rate", "none", "--keep-going", "--grace", "30", "--timeout", "200", "--prefix", "--",
                               os.path.join(support.BUILD, "bin/shoal_perf"), "-b", "1K", "-e", "1K", "--rounds", "100000"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL) as job:
            output = []
            for line in job.stdout:  # rank 0 prints it when all ranks have joined
                output.append(line)
                if f"{RANKS} ranks on" in line:
                    break
            process = process_of(victim, "shoal_perf")
            time.sleep(6)  # until each has chosen an algorithm, on few cores for so many ranks
            killed_at = time.monotonic()
            os.kill(process, signal.SIGKILL)
            for line in job.stdout:
                output.append(line)
                found = re.search(rf"rank (\d+)\].*peer_failed: .*\brank {victim}\b", line)
                if found:
                    named.setdefault(int(found[1]), time.monotonic() - killed_at)
        assert sorted(named) == [rank for rank in range(RANKS) if rank != victim], "".join(output[-200:])
        times = sorted(named.values())
        print(f"rank {victim} killed: named after {times[len(times) // 2]:.2f} s (median), {times[-1]:.2f} s (last)")
        assert times[-1] <= NAMED_WITHIN_S, times
