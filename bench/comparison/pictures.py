"""Draws latency.svg and bus-bandwidth.svg of a folder of bench/compare, a panel for each group: pictures.py FOLDER. Needs matplotlib."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from comparison import runs
from perf import plot

COLUMNS = 4
PICTURES = (("latency.svg", plot.draw_latency, "latency (µs)", "Latency of all_reduce, float32 sum; bands: 10th to 90th percentile"),
            ("bus-bandwidth.svg", plot.draw_bandwidth, "bus bandwidth (GB/s)", "Bus bandwidth of all_reduce, float32 sum"))


def draw(groups, documents, path, draw_panel, label, title):
    pyplot = plot.prepare()
    shown = [group for group in groups if group["peers"] and group["name"] in documents]
    lines = (len(shown) + COLUMNS - 1) // COLUMNS
    figure, panels = pyplot.subplots(lines, min(COLUMNS, len(shown)), figsize=(4.2 * min(COLUMNS, len(shown)), 3.4 * lines), squeeze=False,
                                     constrained_layout=True)
    for panel, group in zip(panels.flat, shown):
        draw_panel(panel, documents[group["name"]]["results"])
        panel.set_title(group["title"], fontsize=11)
        panel.set_ylabel(label if panel.get_subplotspec().is_first_col() else "")
        panel.set_xlabel("")
        if group is not shown[0]:
            panel.get_legend().remove()
    for panel in panels.flat[len(shown):]:
        panel.set_visible(False)
    figure.suptitle(title, fontsize=13)
    plot.save(figure, path)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: pictures.py FOLDER")
    groups = runs.load_groups()
    documents = runs.load_documents(groups, sys.argv[1])
    if not any(group["peers"] and group["name"] in documents for group in groups):
        return  # nothing that compares libraries
    for name, *what in PICTURES:
        draw(groups, documents, os.path.join(sys.argv[1], name), *what)


if __name__ == "__main__":
    main()
