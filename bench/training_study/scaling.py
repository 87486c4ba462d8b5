"""Predicts the step time on many nodes from compute times measured on this machine and all_reduce times simulated by SimGrid.

No time is measured on such nodes. The step is DistributedDataParallel's: buckets of 25 MiB, the first of 1 MiB, averaged one after the other
during backward. All nodes are equally fast.
"""
import json
import subprocess

MIB = 1 << 20
FIRST_BUCKET, BUCKET = MIB, 25 * MIB
NODES = (2, 4, 8, 16, 32, 64, 128, 256, 512)
SIZES = ("64K", "1M", "8M", "64M")
# name, platform of `shoal simulate`, ranks per node, speed of a rank relative to one core of this machine, description
PLATFORMS = (
    ("p4d", "p4d", 8, 250, "p4d-like: 8 ranks a node, 4 x 100 Gbit/s; a rank computes 250 times as fast as the core that was measured (assumed, "
                           "about a GPU)"),
    ("commodity", "ethernet-10g", 1, 1, "commodity: 1 rank a node, 10 Gbit/s Ethernet; a rank computes as fast as the core that was measured"),
)


def simulated_us(shoal, platform, ranks_per_node, sizes=SIZES, nodes=NODES):
    """{nodes: [(bytes, microseconds of the fastest algorithm)]} by `shoal simulate`."""
    table = {count: [] for count in nodes}
    for size in sizes:
        done = subprocess.run([shoal, "simulate", "--platform", platform, "--ranks-per-node", str(ranks_per_node), "--table", "--nodes",
                               f"{nodes[0]}..{nodes[-1]}", "--size", size, "--json", "-"], capture_output=True, text=True, check=True)
        document = json.loads(done.stdout[done.stdout.index("{\n"):])
        for count in nodes:
            times = [row["time_us"] for row in document["results"] if row["nodes"] == count and row.get("time_us")]
            table[count].append((document["bytes"], min(times)))
    return table


def interpolate(points, size):
    """Microseconds for `size` bytes: linear between points and beyond the last one; the first point's time below it."""
    points = sorted(points)
    if size <= points[0][0]:
        return points[0][1]
    for (low, low_us), (high, high_us) in zip(points, points[1:]):
        if size <= high or high == points[-1][0]:
            return low_us + (high_us - low_us) * (size - low) / (high - low)
    raise AssertionError("two points at least")


def buckets(gradients):
    """[(seconds of backward until the bucket is full, bytes)] of gradients in the order of their appearance."""
    full, held, limit = [], 0, FIRST_BUCKET
    for ready_s, size in gradients:
        held += size
        if held >= limit:
            full.append((ready_s, held))
            held, limit = 0, BUCKET
    if held:
        full.append((gradients[-1][0], held))
    return full


def step_s(profile, speed, points):
    """(step time, part of it that waits for averages), in seconds. `points` None: one rank alone."""
    forward_s = (profile["load_s"] + profile["forward_s"]) / speed
    backward_s, update_s = profile["backward_s"] / speed, profile["update_s"] / speed
    free_s = 0.0
    for ready_s, size in buckets(profile["gradients"]) if points else ():
        free_s = max(free_s, ready_s / speed) + interpolate(points, size) / 1e6
    exposed_s = max(0.0, free_s - backward_s)
    return forward_s + backward_s + update_s + exposed_s, exposed_s


def predict(profiles, shoal, platforms=PLATFORMS, simulate=simulated_us):
    """`profiles`: {network: (profile, batch)}. A list of rows for JSON and the report."""
    rows = []
    for name, platform, ranks_per_node, speed, words in platforms:
        table = simulate(shoal, platform, ranks_per_node)
        for network, (profile, batch) in profiles.items():
            alone_s, _ = step_s(profile, speed, None)
            for nodes, points in table.items():
                total_s, exposed_s = step_s(profile, speed, points)
                rows.append({"platform": name, "words": words, "network": network, "batch_per_rank": batch, "nodes": nodes,
                             "ranks": nodes * ranks_per_node, "step_s": total_s, "exposed_s": exposed_s, "alone_s": alone_s,
                             "images_per_s": batch * nodes * ranks_per_node / total_s, "efficiency": alone_s / total_s})
    return rows
