"""Prints one table from the result files of bench/demo and draws the training: report.py FOLDER."""
import os
import sys

from comparison import results
from perf.plot import size_label

RUNS = (("local-openmpi", "1 host x 2 ranks"), ("network-openmpi", "2 hosts x 1 rank"), ("network-gloo", "2 hosts x 1 rank"))


def load(folder, name):
    return results.load(os.path.join(folder, name + ".json"))


def all_reduce_rows(document, where):
    """A row for each size and peer, and the geometric mean of each peer from 64 KiB."""
    mine, table = results.rows(document, "shoal"), []
    for peer in dict.fromkeys(row["library"] for row in document["results"] if row["library"] != "shoal"):
        ratios = results.ratios(document, peer)
        for size, row in results.rows(document, peer).items():
            if size not in ratios:
                continue
            limit = mine[size].get("limit_fraction")
            table.append((where, f"AllReduce {size_label(size)}", f"{mine[size]['latency_us']:,.1f} us", f"{row['latency_us']:,.1f} us", peer,
                          f"{ratios[size]:.2f}", f"{100 * limit:.0f} %" if limit else "-"))
        large = results.geometric_mean(value for size, value in ratios.items() if size >= results.LARGE_BYTES)
        if large:
            table.append((where, "geometric mean from 64 KiB", "", "", peer, f"{large:.2f}", ""))
    return table


def last_by_backend(document):
    return {result["backend"]: result for result in document["results"]}


def training_rows(document):
    backends = last_by_backend(document)
    mine = backends.pop("shoal")
    return [(f"{mine['nodes']} hosts, {mine['ranks']} ranks", f"training {mine['model']}, {mine['dataset']}", f"{mine['images_per_s']:.1f} images/s",
             f"{other['images_per_s']:.1f} images/s", backend, f"{mine['images_per_s'] / other['images_per_s']:.2f}", "-")
            for backend, other in backends.items()]


def draw_training(document, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    backends = last_by_backend(document)
    figure, axes = pyplot.subplots(figsize=(5, 4), layout="constrained")
    bars = axes.bar(list(backends), [result["images_per_s"] for result in backends.values()],
                    color=["#0072B2" if name == "shoal" else "#009E73" for name in backends])
    axes.bar_label(bars, fmt="%.1f")
    axes.set_ylabel("images per second")
    first = next(iter(backends.values()))
    axes.set_title(f"{first['model']}, {first['ranks']} ranks on {first['nodes']} hosts at {first['rate']}")
    figure.savefig(path, format="svg", metadata={"Date": None})


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: report.py FOLDER")
    folder = sys.argv[1]
    rows = [("where", "what", "shoal", "peer", "which", "shoal is x faster", "of the link")]
    for name, where in RUNS:
        rows += all_reduce_rows(load(folder, name), where)
    training = load(folder, "training")
    rows += training_rows(training)
    machine = load(folder, RUNS[0][0])["machine"]
    print(f"Machine: {machine.get('cpu')}, {machine.get('cores')} cores")
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    draw_training(training, os.path.join(folder, "training.svg"))
    print("Pictures: " + " ".join(sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".svg"))))


if __name__ == "__main__":
    main()
