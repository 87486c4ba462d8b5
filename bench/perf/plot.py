"""Draws a result file of shoal_perf: latency and bus bandwidth against message size.

Usage: plot.py RESULTS.json PICTURE.svg. Exit code 3 when matplotlib is missing.
"""

import json
import sys

NO_MATPLOTLIB = 3

# Colours of Okabe and Ito, distinguishable by colour-blind readers; markers and dashes distinguish the lines in black and
# white.
STYLES = {
    "shoal": ("#0072B2", "o", "-"),
    "openmpi": ("#D55E00", "s", "--"),
    "gloo": ("#009E73", "^", "-."),
    "nccl": ("#CC79A7", "D", ":"),
}
OTHER = ("#000000", "x", ":")


def size_label(size, _position=None):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size:g} B"


def curves(results):
    """Results by library, type and operation; the legend shows type and operation only if there are several."""
    groups = {}
    for result in results:
        groups.setdefault((result["library"], result["type"], result["op"]), []).append(result)
    several = len({key[1:] for key in groups}) > 1
    for (library, type_, op), rows in groups.items():
        label = f"{library} {type_} {op}" if several else library
        yield library, label, sorted(rows, key=lambda row: row["bytes"])


def prepare():
    """pyplot, configured so that equal data gives identical files."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 11, "svg.hashsalt": "shoal", "axes.grid": True, "grid.alpha": 0.3})
    return pyplot


def finish_axes(axes):
    from matplotlib import ticker

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("message size")
    axes.xaxis.set_major_locator(ticker.LogLocator(base=2, numticks=9))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(size_label))
    axes.tick_params(axis="x", rotation=30)
    axes.legend(frameon=False)


def styled(results):
    for library, label, rows in curves([row for row in results if row["bytes"] > 0 and row["latency_us"] > 0]):
        colour, mark, dashes = STYLES.get(library, OTHER)
        yield rows, {"color": colour, "marker": mark, "linestyle": dashes, "markersize": 5, "label": label}


def draw_latency(axes, results):
    for rows, style in styled(results):
        sizes = [row["bytes"] for row in rows]
        axes.plot(sizes, [row["latency_us"] for row in rows], **style)
        axes.fill_between(sizes, [row["latency_us_p10"] for row in rows], [row["latency_us_p90"] for row in rows], color=style["color"],
                          alpha=0.15, linewidth=0)
    axes.set_ylabel("latency (µs), band: 10th to 90th percentile")
    finish_axes(axes)


def draw_bandwidth(axes, results):
    for rows, style in styled(results):
        if any(row["busbw_gbs"] > 0 for row in rows):
            axes.plot([row["bytes"] for row in rows], [row["busbw_gbs"] for row in rows], **style)
    limits = {row["limit_gbs"] for row in results if row["limit_gbs"] is not None and row["ranks"] == row["nodes"]}
    for limit in limits:  # bus bandwidth and link rate have the same scale only with one rank per node
        axes.axhline(limit, color="#555555", linewidth=1, linestyle=(0, (1, 1)), label="TCP goodput of the link")
    axes.set_ylabel("bus bandwidth (GB/s)")
    finish_axes(axes)


def save(figure, path):
    figure.savefig(path, format="svg", metadata={"Date": None})


def draw(document, path):
    results = [row for row in document["results"] if row["bytes"] > 0 and row["latency_us"] > 0]
    if not results:
        sys.exit("plot.py: the file has no result with a size and a time")
    figure, (latency, bandwidth) = prepare().subplots(1, 2, figsize=(11, 4.5), constrained_layout=True)
    draw_latency(latency, results)
    draw_bandwidth(bandwidth, results)
    first = results[0]
    machine = document["machine"]
    figure.suptitle(f"{first['collective']}: {first['ranks']} ranks on {first['nodes']} node(s); {machine['cpu']}, {machine['cores']} cores",
                    fontsize=12)
    save(figure, path)


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: plot.py RESULTS.json PICTURE.svg")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        sys.exit(NO_MATPLOTLIB)
    with open(sys.argv[1], encoding="utf-8") as file:
        document = json.load(file)
    draw(document, sys.argv[2])


if __name__ == "__main__":
    main()
