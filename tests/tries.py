"""Figures that are measured on a machine which others may use: judged where the machine was there to measure them on."""
import os

OTHERS = 0.1  # of the machine: where others use more, a figure that misses its bound says nothing


def _stolen_and_total():
    """Ticks of all cores: what the host of a virtual machine took away, and all."""
    with open("/proc/stat", encoding="ascii") as file:
        numbers = [int(word) for word in file.readline().split()[1:9]]
    return numbers[7], sum(numbers)


def _used_by_process():
    """{process: ticks that it has used}, of all but this one and the kernel's own, which work for whoever sends and receives."""
    used = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if int(fields[20]) > 0:  # has memory of its own
            used[int(name), fields[19]] = int(fields[11]) + int(fields[12])
    return used


class _Watch:
    """What others use of the machine from now on: processes that run already, and the host."""

    def __init__(self):
        self.stolen, self.total = _stolen_and_total()
        self.used = _used_by_process()

    def share(self):
        stolen, total = _stolen_and_total()
        others = sum(ticks - self.used.get(process, ticks) for process, ticks in _used_by_process().items())
        return (others + stolen - self.stolen) / max(1, total - self.total)


def judge(case, attempt, complaints, tries=6):
    """Measures by attempt() until each figure has been good once; complaints(of what was measured) is {figure: what is wrong with it}.

    At most `tries` times. Fails with what is left, unless others disturbed every try: then the case is skipped, and the reason says by how
    much.
    """
    shares, left = [], None
    for _ in range(tries):
        watch = _Watch()
        wrong = complaints(attempt())
        left = wrong if left is None else {figure: wrong[figure] for figure in left if figure in wrong}
        if not left:
            return
        shares.append(watch.share())
        print(f"  try {len(shares)} of {tries}: {'; '.join(left.values())}; others used {100 * shares[-1]:.0f} % of the machine", flush=True)
    if min(shares) > OTHERS:
        case.skipTest(f"others used {100 * min(shares):.0f} to {100 * max(shares):.0f} % of this machine in each of {tries} tries")
    case.fail("; ".join(left.values()))
