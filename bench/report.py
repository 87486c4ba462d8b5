"""Prints one table from the result files of bench/demo: report.py FOLDER. Writes to FOLDER: the table in tables.json and one sentence in
headline.txt, for the page; summary.md, the sentence and a shorter table."""
import glob
import json
import os
import sys
import textwrap

from comparison import results
from perf.plot import size_label

RUNS = (("local-openmpi", "1 host x 2 ranks"), ("network-openmpi", "2 hosts x 2 ranks"), ("network-gloo", "2 hosts x 2 ranks"))
HEAD = ("where", "what", "shoal", "peer", "which", "shoal is x faster", "of the link")
NAMES = results.NAMES | {"mpi": "Open MPI", "resnet18": "ResNet18"}
HEADLINE = "training-resnet18"  # fixed before the run, so that the sentence does not pick the best result


def load(folder, name):
    return results.load(os.path.join(folder, name + ".json"))


def all_reduce_rows(document, where, least_bytes=0):
    """A row for each size and peer, and the geometric mean of each peer from 64 KiB."""
    mine, table = results.rows(document, "shoal"), []
    for peer in dict.fromkeys(row["library"] for row in document["results"] if row["library"] != "shoal"):
        ratios = results.ratios(document, peer)
        for size, row in results.rows(document, peer).items():
            if size not in ratios or size < least_bytes:
                continue
            limit = mine[size].get("limit_fraction")
            table.append((where, f"AllReduce {size_label(size)}", f"{mine[size]['latency_us']:,.1f} us", f"{row['latency_us']:,.1f} us", NAMES[peer],
                          f"{ratios[size]:.2f}", f"{100 * limit:.0f} %" if limit else "-"))
        large = results.geometric_mean(value for size, value in ratios.items() if size >= results.LARGE_BYTES)
        if large:
            table.append((where, "geometric mean from 64 KiB", "", "", NAMES[peer], f"{large:.2f}", ""))
    return table


def counted(count, noun):
    return f"{count} {noun}{'' if count == 1 else 's'}"


def shoal_and_peers(document):
    """(shoal's result, {backend: result} of the peers); the last result of each."""
    backends = {result["backend"]: result for result in document["results"]}
    return backends.pop("shoal"), backends


def training_rows(document):
    mine, peers = shoal_and_peers(document)
    where = f"{counted(mine['nodes'], 'host')} x {counted(mine['ranks'] // mine['nodes'], 'rank')}"
    what = f"training {mine['model']}, {mine['dataset']}, batch {mine['batch_per_rank']}"
    return [(where, what, f"{mine['images_per_s']:.1f} images/s", f"{peer['images_per_s']:.1f} images/s", NAMES[backend],
             f"{mine['images_per_s'] / peer['images_per_s']:.2f}", "-") for backend, peer in peers.items()]


def loss_words(mine, peers):
    """How the peers' losses differ from shoal's, step by step. Empty if a loss is missing (null: not a finite number)."""
    pairs = [pair for peer in peers.values() for pair in zip(mine["step_loss"], peer["step_loss"])]
    if not pairs or any(None in pair for pair in pairs):
        return ""
    largest = max(abs(own - other) / max(abs(own), 1e-30) for own, other in pairs)
    return f", with losses that differ by about {100 * largest:.1g} % at most" if largest else ", with the same loss in every step"


def headline(document):
    """One sentence from a training of bench/demo, whose hosts are emulated. It contains "only" if shoal is slower."""
    mine, peers = shoal_and_peers(document)
    hosts, ranks = counted(mine["nodes"], "emulated host"), counted(mine["ranks"] // mine["nodes"], "rank")
    rate = mine["rate"].replace("gbit", " Gbit/s").replace("mbit", " Mbit/s")
    speeds = []
    for backend, peer in peers.items():
        ratio = f"{mine['images_per_s'] / peer['images_per_s']:.2f}"
        speeds.append(f"{'only ' if float(ratio) < 1 else ''}{ratio} times as fast {'' if speeds else 'with shoal '}as with {NAMES[backend]}")
    return (f"Training {NAMES.get(mine['model'], mine['model'])} on {hosts} with {ranks} each, joined at {rate}, is {' and '.join(speeds)}"
            f"{loss_words(mine, peers)}.")


def all_rows(folder, least_bytes=0):
    rows = []
    for name, where in RUNS:
        rows += all_reduce_rows(load(folder, name), where, least_bytes)
    for path in sorted(glob.glob(os.path.join(folder, "training-*.json"))):
        rows += training_rows(results.load(path))
    return rows


def peers_side_by_side(rows):
    """Markdown: one row for all peers. shoal's own figure is that of the run with the first peer."""
    merged = {}
    for where, what, mine, _, peer, ratio, _ in rows:
        merged.setdefault((where, what), (mine, {}))[1][peer] = f"{ratio} x"
    peers = ("Open MPI", "Gloo")
    lines = ["| where | what | shoal | " + " | ".join(f"faster than {peer}" for peer in peers) + " |", "|---|---|---|---|---|"]
    for (where, what), (mine, ratios) in merged.items():
        lines.append(f"| {where} | {what} | {mine} | " + " | ".join(ratios.get(peer, "") for peer in peers) + " |")
    return "\n".join(lines)


def summary_page(sentence, rows):
    return f"# bench/demo\n\n{textwrap.fill(sentence, 118)}\n\nFrom 64 KiB up:\n\n{peers_side_by_side(rows)}\n"


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: report.py FOLDER")
    folder = sys.argv[1]
    rows, sentence = all_rows(folder), headline(load(folder, HEADLINE))
    with open(os.path.join(folder, "summary.md"), "w", encoding="utf-8") as file:
        file.write(summary_page(sentence, all_rows(folder, results.LARGE_BYTES)))
    machine = load(folder, RUNS[0][0])["machine"]
    print(f"Machine: {machine.get('cpu')}, {machine.get('cores')} cores")
    widths = [max(len(row[column]) for row in (HEAD, *rows)) for column in range(len(HEAD))]
    for row in (HEAD, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    with open(os.path.join(folder, "tables.json"), "w", encoding="utf-8") as file:
        json.dump([{"title": "AllReduce and training", "note": "", "head": HEAD, "rows": rows}], file)
    with open(os.path.join(folder, "headline.txt"), "w", encoding="utf-8") as file:
        file.write(sentence + "\n")


if __name__ == "__main__":
    main()
