"""Result files of shoal_perf: reading them, and the figures that compare libraries. Shared by bench/compare and bench/report.py."""
import json
import math
import re
import statistics

NAMES = {"openmpi": "Open MPI", "gloo": "Gloo", "shoal": "shoal"}
LARGE_BYTES = 64 << 10  # from here on bandwidth counts more than latency


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def parse_size(text):
    """'64K' -> 65536, as shoal_perf reads it."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text)
    if not match:
        raise ValueError(f"'{text}' is not a size such as 4, 64K or 1M")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]


def parse_sizes(text):
    """'64K..4M' -> (65536, 4194304); either end may be missing."""
    first, _, last = text.partition("..")
    return parse_size(first) if first else 0, parse_size(last) if last else math.inf


def rows(document, library, type_="float32"):
    """{bytes: row} of one library. Of a size that was measured in several cycles, the row with the median time."""
    by_size = {}
    for row in document["results"]:
        if row["library"] == library and row["type"] == type_:
            by_size.setdefault(row["bytes"], []).append(row)
    middle = {size: statistics.median_low(row["latency_us"] for row in all_) for size, all_ in by_size.items()}
    return {size: next(row for row in by_size[size] if row["latency_us"] == middle[size]) for size in sorted(by_size)}


def ratios(document, peer, key="latency_us", type_="float32"):
    """{bytes: the peer's value over shoal's} of the sizes that both have measured. For times it is the median, over rounds and cycles, of the
    ratio of two neighboring turns."""
    mine, theirs = rows(document, "shoal", type_), rows(document, peer, type_)
    of_size = {size: theirs[size][key] / mine[size][key] for size in mine if size in theirs and mine[size][key] > 0}
    if key != "latency_us":
        return of_size
    paired = {}
    for row in document["results"]:
        if row["library"] == peer and row["type"] == type_ and row.get("time_over_shoal") is not None:
            paired.setdefault(row["bytes"], []).append(row["time_over_shoal"])
    return of_size | {size: statistics.median(values) for size, values in paired.items() if size in of_size}


def within(values, sizes):
    """The entries of {bytes: value} within `sizes`, a text for parse_sizes."""
    first, last = parse_sizes(sizes)
    return {size: value for size, value in values.items() if first <= size <= last}


def geometric_mean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None
