"""Prints one table from the result files of bench/demo and draws the training: report.py FOLDER."""
import json
import math
import os
import sys

RUNS = (("local-openmpi", "1 host x 2 ranks"), ("network-openmpi", "2 hosts x 1 rank"), ("network-gloo", "2 hosts x 1 rank"))


def load(folder, name):
    with open(os.path.join(folder, name + ".json"), encoding="utf-8") as file:
        return json.load(file)


def size_label(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def all_reduce_rows(document, where):
    """A row for each size and peer, and the geometric mean of each peer from 64 KiB."""
    of_shoal = {result["bytes"]: result for result in document["results"] if result["library"] == "shoal"}
    ratios, rows = {}, []
    for result in document["results"]:
        mine = of_shoal.get(result["bytes"])
        if result["library"] == "shoal" or mine is None:
            continue
        ratio = result["latency_us"] / mine["latency_us"]
        if result["bytes"] >= 64 << 10:
            ratios.setdefault(result["library"], []).append(ratio)
        limit = mine.get("limit_fraction")
        rows.append((where, f"AllReduce {size_label(result['bytes'])}", f"{mine['latency_us']:,.1f} us", f"{result['latency_us']:,.1f} us",
                     result["library"], f"{ratio:.2f}", f"{100 * limit:.0f} %" if limit else "-"))
    for library, values in ratios.items():
        rows.append((where, "geometric mean from 64 KiB", "", "", library, f"{math.exp(sum(map(math.log, values)) / len(values)):.2f}", ""))
    return rows


def last_by_backend(document):
    return {result["backend"]: result for result in document["results"]}


def training_rows(document):
    results = last_by_backend(document)
    mine = results.pop("shoal")
    return [(f"{mine['nodes']} hosts, {mine['ranks']} ranks", f"training {mine['model']}, {mine['dataset']}", f"{mine['images_per_s']:.1f} images/s",
             f"{other['images_per_s']:.1f} images/s", backend, f"{mine['images_per_s'] / other['images_per_s']:.2f}", "-")
            for backend, other in results.items()]


def draw_training(document, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    results = last_by_backend(document)
    figure, axes = pyplot.subplots(figsize=(5, 4), layout="constrained")
    bars = axes.bar(list(results), [result["images_per_s"] for result in results.values()],
                    color=["#0072B2" if name == "shoal" else "#009E73" for name in results])
    axes.bar_label(bars, fmt="%.1f")
    axes.set_ylabel("images per second")
    first = next(iter(results.values()))
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
