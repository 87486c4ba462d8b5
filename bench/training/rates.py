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
    """Of the rows of one run, those of shoal left out."""
    best = max((row for row in results if row["backend"] != "shoal"), key=lambda row: row["images_per_s"])
    return Probe(mbit, best["backend"], best["seconds"] / best["steps"], best["comm_exposed_s"] / best["steps"])


def next_mbit(probe, wire_bits):
    """Training waits for the wire longer, second for second, when the wire takes longer: `exposed` becomes what computing takes where the wire
    takes their difference more. A wire that is hidden altogether hides how much it could grow; the next try tells."""
    wire_s = wire_bits / (1e6 * probe.mbit * GOODPUT)
    wanted_s = wire_s + (probe.step_s - probe.exposed_s) - probe.exposed_s
    factor = wire_s / wanted_s if wanted_s > 0 else 8
    return max(1, round(probe.mbit * min(max(factor, 1 / 8), 8)))


def first_mbit(wire_bits, compute_s):
    """Forward is a third of computing; the wire is to take twice backward and forward once, of which backward hides its own length."""
    return max(1, round(wire_bits / (1e6 * GOODPUT * compute_s * 5 / 3)))


def search(try_rate, wire_bits, compute_s):
    """`try_rate(mbit)` gives a Probe. Returns the best probe and all of them as objects for JSON."""
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
