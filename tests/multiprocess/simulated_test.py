"""The engine on SimGrid against bench/cluster: what it predicts for 2, 4 and 8 emulated hosts is what they take, within 15 %.

The wire's goodput and latency are measured in the same run (shoal_perf's limit, and a ring of 32 bytes). Messages are large enough that
the burst of the token bucket that shapes a link does not count; queues hold what seven hosts send to one at once, for the engine knows no
lost packets, and nothing of what TCP's congestion control would do beyond using the link (bench/cluster chooses reno; with bbr direct and
circulant take up to 1.4 times as long). All hosts share this machine's two cores, and the wire must be what limits, not the cores, also
where others take a part of them: at 200 Mbit/s eight hosts keep them a tenth busy. What is measured while the machine stands still for a
moment says nothing of the engine: tries.py.
"""
import json
import os
import subprocess
import tempfile
import unittest

import cases
import tries

CLUSTER = os.path.join(cases.REPOSITORY, "bench/cluster")
SHOAL = os.path.join(cases.BUILD, "bin/shoal")
PERF = os.path.join(cases.BUILD, "bin/shoal_perf")
LINKS = ("--rate", "200mbit", "--queue", "0.4")
ALGORITHMS = ("ring", "direct", "circulant")
BOUND = 0.15


def measure(folder, hosts, algorithm, *options):
    """The results of shoal_perf on `hosts` hosts."""
    path = os.path.join(folder, "measured.json")
    done = subprocess.run([CLUSTER, f"{hosts}x1", *LINKS, "--timeout", "50", "--", PERF, "--algorithm", algorithm, "-c", "0",
                           "--json", path, *options], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise AssertionError(f"shoal_perf on {hosts} hosts ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    with open(path, encoding="utf-8") as file:
        return json.load(file)["results"]


def predict_us(hosts, algorithm, size, gbit_s, latency_us):
    done = subprocess.run([SHOAL, "simulate", "--platform", "emulated", "--nodes", str(hosts), "--algorithm", algorithm, "--size", str(size),
                           "--network-gbit-s", str(gbit_s), "--network-latency-us", str(latency_us), "--json", "-"],
                          capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout)["results"][0]["time_us"]


def complaints(ratios):
    """What is wrong with which predictions."""
    return {size: f"{size} bytes: predicted / measured is {ratio:.3f}" for size, ratio in ratios.items() if not abs(ratio - 1) <= BOUND}


@unittest.skipIf(cases.cluster_complaint(), cases.cluster_complaint())
class Simulated(unittest.TestCase):
    def ratios(self, folder, hosts, algorithm):
        """By message size: predicted over measured."""
        small = measure(folder, hosts, "ring", "-b", "32", "-e", "32", "--no-limit", "--size-seconds", "0.3")[0]
        latency_us = small["latency_us"] / (2 * (hosts - 1))
        ratios = {}
        for row in measure(folder, hosts, algorithm, "-b", "2M", "-e", "8M", "-f", "4", "-w", "1", "--rounds", "3", "--size-seconds", "1.5"):
            gbit_s = row["limit_gbs"] * 8
            predicted = predict_us(hosts, algorithm, row["bytes"], gbit_s, latency_us)
            ratios[row["bytes"]] = predicted / row["latency_us"]
            print(f"{hosts} hosts, {algorithm}, {row['bytes']} bytes: measured {row['latency_us']:.0f} us, predicted {predicted:.0f} us "
                  f"({ratios[row['bytes']]:.3f}) at {gbit_s:.4f} Gbit/s and {latency_us:.0f} us", flush=True)
        return ratios

    def compare(self, hosts):
        for algorithm in ALGORITHMS:
            with self.subTest(hosts=hosts, algorithm=algorithm), tempfile.TemporaryDirectory() as folder:
                tries.judge(self, lambda folder=folder, algorithm=algorithm: self.ratios(folder, hosts, algorithm), complaints)

    def test_two_hosts(self):
        self.compare(2)

    def test_four_hosts(self):
        self.compare(4)

    def test_eight_hosts(self):
        self.compare(8)


cases.main()
