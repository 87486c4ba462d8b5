"""The groups of rows of groups.json: the command that measures a group, and its result file."""
import json
import os
import re
import shlex
import subprocess
import time

from comparison import results

FOLDER = os.path.dirname(os.path.abspath(__file__))
REPOSITORY = os.path.dirname(os.path.dirname(FOLDER))
BUSY_S = 0.5  # how long the machine's load is measured before a group starts
TIMEOUT_FACTOR = 4  # a run is ended after this multiple of its expected time
STOLEN_SHARE = 0.02  # a group is measured again if the host of a virtual machine took more than this share of the time
TRIES = 3  # the try with the smallest stolen share counts


class GroupFailed(Exception):
    """A group of rows could not be measured; the message has the reason."""


def shown(path):
    """A path for messages and result files: relative to the root of the checkout if it is inside."""
    return os.path.relpath(path, REPOSITORY) if path.startswith(REPOSITORY + os.sep) else path


def load_groups(name="groups"):
    """The groups of NAME.json: "groups" (all_reduce) or "collectives" (all others)."""
    return results.load(os.path.join(FOLDER, name + ".json"))


def load_documents(groups, folder):
    """{group's name: result file} of those that have been measured."""
    found = {group["name"]: os.path.join(folder, group["name"] + ".json") for group in groups}
    return {name: results.load(path) for name, path in found.items() if os.path.exists(path)}


def expected_s(group, quick):
    return 15 if quick else group["seconds"]


def command_of(group, quick, perf, json_path):
    """The command that measures a group. With Open MPI mpirun starts the ranks, and the best of its algorithms counts."""
    limit_s = TIMEOUT_FACTOR * expected_s(group, quick)
    variables = [f"{name}={value}" for name, value in group.get("environment", {}).items()]
    command = ["env", *variables] if variables else []
    command += [os.path.join(REPOSITORY, "bench/cluster"), group["shape"], "--rate", group["rate"], "--timeout", str(limit_s)]
    if "openmpi" in group["peers"]:
        command.append("--mpi")
        command += ["--mpi-over", group["over"]] if "over" in group else []
    command += ["--", perf, *group["quick" if quick else "arguments"], "--out-of-place", "--json", json_path]
    if group["peers"]:
        command += ["--peer", ",".join(group["peers"])]
    if "openmpi" in group["peers"]:
        command += ["--openmpi-algorithms", "all"]
    return command


def ticks():
    """Ticks of all cores since boot: all, idle or waiting for a disk, and taken by the host of a virtual machine."""
    with open("/proc/stat", encoding="ascii") as file:
        numbers = [int(word) for word in file.readline().split()[1:9]]
    return sum(numbers), numbers[3] + numbers[4], numbers[7]


def busy_share():
    """The share of all cores that other processes use. To be called while no measurement runs."""
    total, idle, _ = ticks()
    time.sleep(BUSY_S)
    total_later, idle_later, _ = ticks()
    return 1 - (idle_later - idle) / max(1, total_later - total)


def run(command, on_size):
    """Runs shoal_perf and calls on_size for each size in its output. An exception here ends its processes."""
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True) as process:
        try:
            for line in process.stdout:
                lines.append(line)
                if match := re.match(r"\s+(\d+)\s+\d+\s+b?float", line):
                    on_size(int(match[1]))
        except BaseException:
            process.terminate()  # bench/cluster ends its ranks
            raise
    if process.returncode != 0:
        words = "".join(line for line in lines if not line.startswith(("#", "  "))) or "".join(lines)
        raise GroupFailed(f"{shlex.join(command)} ended with {process.returncode}:\n{words.strip()[-2000:]}")


def measure(group, quick, perf, folder, on_size):
    """Writes FOLDER/NAME.json. Calls `on_size(bytes)` after every row. Raises GroupFailed if a run fails."""
    path = os.path.join(folder, group["name"] + ".json")
    tries = []
    for _ in range(1 if quick else TRIES):
        tries.append(measure_once(group, quick, perf, path + ".partial", on_size))
        best = min(tries, key=lambda document: document["stolen_share"])
        with open(path, "w", encoding="utf-8") as file:  # each time: the next try may fail
            file.write(json.dumps(best | {"tries": len(tries)}, indent=1) + "\n")
        if best["stolen_share"] <= STOLEN_SHARE:
            return


def measure_once(group, quick, perf, partial, on_size):
    """What shoal_perf leaves, for as long as this takes, in the file `partial`, and what the machine did meanwhile."""
    command = command_of(group, quick, perf, partial)
    busy = busy_share()
    started, (total, _, stolen) = time.monotonic(), ticks()
    try:
        run(command, on_size)
        document = results.load(partial)
    finally:
        if os.path.exists(partial):
            os.remove(partial)
    at = command.index("--json")
    words = [shown(word) for word in command[:at] + command[at + 2:]]
    total_later, _, stolen_later = ticks()
    return document | {"command": shlex.join(words), "group": group["name"], "quick": quick, "busy_share": round(busy, 2),
                       "stolen_share": round((stolen_later - stolen) / max(1, total_later - total), 3),
                       "seconds": round(time.monotonic() - started, 1)}
