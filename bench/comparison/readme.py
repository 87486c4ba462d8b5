"""Writes the table of results in the repository's README, between two marks: rows of the committed results, also those in which shoal is
slower. `bench/compare --tables` and `bench/study --page` call it."""
import os

from comparison import results, runs
from comparison.tables import line, ratio
from training_study import rows
from training_study.tables import last

README = os.path.join(runs.REPOSITORY, "README.md")
COMPARISON = os.path.join(runs.REPOSITORY, "bench/results/comparison")
TRAINING = os.path.join(runs.REPOSITORY, "bench/results/training")
MARKS = ("<!-- results: written by bench/compare --tables and bench/study --page -->", "<!-- end of results -->")
# The page has room for 12 rows.
GROUPS = ("1x2", "1x2-shared", "1x4", "2x1-1gbit", "4x1-1gbit", "2x2-1gbit", "2x1-10gbit", "2x1-unshaped", "1x2-ofi")
PARTS = {("rates-2x1", "rates-4x1"): "network-bound", ("1gbit-batch8",): "1 Gbit/s, batch 8",
         ("1gbit-batch32",): "1 Gbit/s, batch 32"}


def mean(values):
    return ratio(results.geometric_mean(values)) if values else ""


def all_reduce_row(group, document):
    """Geometric means from 64 KiB; the least ratio of all sizes and peers."""
    of_peer = {peer: results.ratios(document, peer) for peer in ("openmpi", "gloo")}
    found = [(value, size, peer) for peer, ratios in of_peer.items() for size, value in ratios.items()]
    if not found:
        return None
    large = [[value for size, value in ratios.items() if size >= results.LARGE_BYTES] for ratios in of_peer.values()]
    least, size, peer = min(found)
    return line([f"AllReduce, {group['title']}", *map(mean, large), f"{ratio(least, size)} ({results.NAMES[peer]})"])


def training_row(parts, words, trainings):
    """Geometric means over the networks; the least ratio of all networks and peers."""
    of_peer, found = {"mpi": [], "gloo": []}, []
    for row in rows.rows_of(parts, None):
        backends = last(trainings[row.name]) if row.name in trainings else {}
        for peer in of_peer:
            if "shoal" in backends and backends.get(peer, {}).get("images_per_s"):
                value = backends["shoal"]["images_per_s"] / backends[peer]["images_per_s"]
                of_peer[peer].append(value)
                found.append((value, row.model, row.hosts))
    if not found:
        return None
    least, model, hosts = min(found)
    return line([f"Training, 2 and 4 hosts, {words}", *map(mean, of_peer.values()), f"{ratio(least)} ({model}, {hosts} hosts)"])


def table(groups, documents, trainings):
    """The table from `documents` (of groups, by name) and `trainings` (of rows of the study, by name)."""
    of_name = {group["name"]: group for group in groups}
    lines = [all_reduce_row(of_name[name], documents[name]) for name in GROUPS if name in documents]
    lines += [training_row(parts, words, trainings) for parts, words in PARTS.items()]
    return "\n".join([line(["work", "over Open MPI", "over Gloo", "least"]), "|---|---|---|---|", *filter(None, lines)])


def replaced(text, new):
    """`text` with `new` between the marks. ValueError if it does not hold both."""
    head, begin, rest = text.partition(MARKS[0])
    _, end, tail = rest.partition(MARKS[1])
    if not begin or not end:
        raise ValueError(f"README.md has no place for the table: add the lines '{MARKS[0]}' and '{MARKS[1]}'")
    return head + begin + "\n" + new + "\n" + end + tail


def update():
    """Writes the table of the committed results. ValueError as above."""
    groups = runs.load_groups()
    paths = {row.name: os.path.join(TRAINING, row.name + ".json") for row in rows.rows_of(rows.PARTS, None)}
    trainings = {name: results.load(path) for name, path in paths.items() if os.path.exists(path)}
    new = table(groups, runs.load_documents(groups, COMPARISON), trainings)
    with open(README, encoding="utf-8") as file:
        text = replaced(file.read(), new)
    with open(README, "w", encoding="utf-8") as file:
        file.write(text)
