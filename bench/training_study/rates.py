"""Finds the link rate at which the better of the other backends waits for communication during about half of its step."""
from dataclasses import asdict, dataclass

GOODPUT = 0.955  # of a link's rate, measured by shoal_perf on bench/cluster: limit_gbs in bench/results/comparison/*-1gbit.json
NEAR = (0.42, 0.58)  # about half
TRIES = 4
STEPS = 5  # measured ones of each backend in a try


@dataclass(frozen=True)
class Probe:
    """The better backend at one rate, by step."""
    mbit: float
    backend: str
    step_s: float
    exposed_s: float

    @property
    def share(self):
        return self.exposed_s / self.step_s


def text_of(mbit):
    return f"{mbit:.0f}mbit"


def better_probe(mbit, results):
    """The Probe of the faster peer of shoal in one run."""
    best = max((row for row in results if row["backend"] != "shoal"), key=lambda row: row["images_per_s"])
    return Probe(mbit, best["backend"], best["seconds"] / best["steps"], best["comm_exposed_s"] / best["steps"])


def next_mbit(probe, wire_bits):
    """The next rate to try. A second more on the wire exposes a second more, so the wire time must change by the difference of compute time and
    exposed time. If the wire is hidden completely, its slack is unknown, and the next try shows more."""
    wire_s = wire_bits / (1e6 * probe.mbit * GOODPUT)
    wanted_s = wire_s + (probe.step_s - probe.exposed_s) - probe.exposed_s
    factor = wire_s / wanted_s if wanted_s > 0 else 8
    return max(1, round(probe.mbit * min(max(factor, 1 / 8), 8)))


def first_mbit(wire_bits, compute_s):
    """The first rate to try. Forward is a third of the compute time. Backward hides its own length of wire time, so half of the step is exposed
    if the wire takes twice backward plus forward."""
    return max(1, round(wire_bits / (1e6 * GOODPUT * compute_s * 5 / 3)))


def search(try_rate, wire_bits, compute_s):
    """Tries rates by `try_rate(mbit)`, which returns a Probe. Returns the best probe, and all of them as objects for JSON."""
    probes = []
    mbit = first_mbit(wire_bits, compute_s)
    while len(probes) < TRIES:
        probes.append(try_rate(mbit))
        if NEAR[0] <= probes[-1].share <= NEAR[1]:
            break
        mbit = next_mbit(probes[-1], wire_bits)
        if any(probe.mbit == mbit for probe in probes):
            break
    best = min(probes, key=lambda probe: abs(probe.share - 0.5))
    return best, [asdict(probe) | {"exposed_share": round(probe.share, 3)} for probe in probes]
