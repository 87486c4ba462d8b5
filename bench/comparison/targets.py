"""Judges whether a group of rows meets its targets, which groups.json lists."""
from dataclasses import dataclass

from comparison.results import NAMES, geometric_mean, parse_sizes, ratios, rows, within
from perf.plot import size_label


@dataclass(frozen=True)
class Verdict:
    target: str  # "at least 2 x Open MPI at every size up to 64 B"
    value: float | None  # None if nothing was measured for it
    size: int | None  # where the value was found, if at one size
    met: bool


def _least(values):
    size = min(values, key=values.get)
    return values[size], size


def _greatest(values):
    size = max(values, key=values.get)
    return values[size], size


def _mean(values):
    return geometric_mean(values.values()), None


def _limits(document, _target):
    return {size: row["limit_fraction"] for size, row in rows(document, "shoal").items() if row["limit_fraction"] is not None}


def _over_float32(document, target):
    """Time of a type of 2 bytes over that of as many float32."""
    wide = rows(document, "shoal", "float32")
    halves = rows(document, "shoal", target["type"])
    return {size: row["latency_us"] / wide[2 * size]["latency_us"] for size, row in halves.items() if 2 * size in wide}


def _times(document, target):
    return ratios(document, target["peer"])


def _cpu_times(document, target):
    return ratios(document, target["peer"], "cpu_s_per_gb")


# name: (values by size, one value of them, words)
FIGURES = {
    "ratio_least": (_times, _least, "{bound} x {peer} at every size{sizes}"),
    "ratio_mean": (_times, _mean, "{bound} x {peer} as geometric mean{sizes}"),
    "cpu_ratio_mean": (_cpu_times, _mean, "{bound} x as CPU time of {peer} over shoal's{sizes}"),
    "limit_least": (_limits, _least, "{bound} of the links' limit{sizes}"),
    "time_of_float32_greatest": (_over_float32, _greatest, "{type} in {bound} of the time of float32{sizes}"),
}


def words_of_sizes(text):
    if not text:
        return ""
    first, last = parse_sizes(text)
    if last == float("inf"):
        return f" from {size_label(first)}"
    return f" up to {size_label(last)}" if not first else f" from {size_label(first)} to {size_label(last)}"


def words(target):
    least = "at_least" in target
    bound = f"{'at least' if least else 'at most'} {target['at_least' if least else 'at_most']:g}"
    text = FIGURES[target["figure"]][2].format(bound=bound, peer=NAMES.get(target.get("peer")), type=target.get("type"),
                                               sizes=words_of_sizes(target.get("sizes", "")))
    return text + (f" ({100 * target['noise']:g} % noise allowed)" if "noise" in target else "")


def judge(target, document):
    """The Verdict about one target, by the result file of its group."""
    values_of, one_of, _ = FIGURES[target["figure"]]
    values = within(values_of(document, target), target.get("sizes", ""))
    if not values:
        return Verdict(words(target), None, None, False)
    value, size = one_of(values)
    noise = target.get("noise", 0)
    met = value >= target["at_least"] * (1 - noise) if "at_least" in target else value <= target["at_most"] * (1 + noise)
    return Verdict(words(target), value, size, met)
