"""Makes a page of the results of bench/pipelines: pipeline_page.py FILE.json --out FOLDER. Needs matplotlib.

Each pipeline has torch's pipeline and data parallelism beside it, also where these are faster; where the file has them, the time and memory
of each rank and a step as a time line."""
import argparse
import html
import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "train/page"))
import checks  # noqa: E402  after the path
import page  # noqa: E402
import pipeline_figures  # noqa: E402
from figures import COLOURS, HATCHES, INK, pyplot, to_svg  # noqa: E402

PIPELINES = ("shoal pipeline", "torch pipeline")
DATA_PARALLEL = ("shoal data-parallel", "gloo data-parallel")
WAYS = PIPELINES + DATA_PARALLEL


def is_series(values):
    return isinstance(values, list) and values and all(type(value) in (int, float) for value in values)


def complaint_about(document):
    """What is missing or wrong in a file; None if nothing is."""
    if not isinstance(document, dict) or not isinstance(document.get("results"), list) or not document["results"]:
        return "it has no results"
    for number, row in enumerate(document["results"], 1):
        if not isinstance(row, dict) or not isinstance(row.get("model"), str) or not isinstance(row.get("figures"), dict):
            return f'row {number} has no "model" or "figures"'
        missing = [way for way in WAYS if not is_series(row["figures"].get(way))]
        if missing:
            return f'row {number} ({row["model"]}) has no figures of "{missing[0]}"'
        if not isinstance(row.get("pipeline_ranks", []), list):
            return f'"pipeline_ranks" of row {number} is not a list'
        if wrong := checks.of_pipeline(row, f"row {number}"):
            return wrong
    return None


def place_of(row):
    return row.get("rate") or "one host"


def medians(row):
    return {way: statistics.median(row["figures"][way]) for way in WAYS}


def fastest(row):
    middle = medians(row)
    return max(WAYS, key=middle.get)


def gain(row):
    """images/s of shoal's pipeline over those of the better data parallelism."""
    middle = medians(row)
    return middle["shoal pipeline"] / max(middle[way] for way in DATA_PARALLEL)


def table(rows):
    """For page.given_table(): rows in which the pipeline is not the fastest are marked."""
    head = ["network", "link", *(f"{way}, images/s" for way in WAYS), "pipeline / better data parallelism", "bubble", "predicted", "fastest"]
    body = []
    for row in rows:
        shares = [row["figures"].get(name) for name in ("bubble", "bubble_predicted")]
        body.append([row["model"], place_of(row), *(f"{value:.1f}" for value in medians(row).values()),
                     ("" if gain(row) > 1 else "!") + f"{gain(row):.2f}",
                     *(f"{100 * statistics.median(share):.1f} %" if is_series(share) else "-" for share in shares), fastest(row)])
    return {"title": "Pipelines beside data parallelism", "head": head, "rows": body,
            "note": "images/s are medians over the rounds. Where the ratio is marked, data parallelism is at least as fast as the pipeline. "
                    "bubble: the part of all ranks' time in which they did not compute."}


def throughput(rows):
    """A group of bars for each network and link, a bar for each way to train."""
    figure, axes = pyplot.subplots(figsize=(3 + 1.5 * len(rows), 3.8), layout="constrained")
    for number, way in enumerate(WAYS):
        places = [place - 0.3 + 0.2 * number for place in range(len(rows))]
        bars = axes.bar(places, [medians(row)[way] for row in rows], 0.19, color=COLOURS[number], hatch=HATCHES[number], edgecolor=INK,
                        linewidth=0.4, label=way)
        axes.bar_label(bars, fmt="%.0f", fontsize=7)
    axes.set_xticks(range(len(rows)), [f"{row['model']}\n{place_of(row)}" for row in rows], fontsize=8)
    axes.set_ylabel("images/s")
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    axes.set_title("Images per second of each way to train, on the same ranks", fontsize=10)
    return figure


def sections(document):
    """[(heading or None, {name: figure})]."""
    found = [(None, {"throughput": throughput(document["results"])})]
    for number, row in enumerate(document["results"], 1):
        title = f"{row['model']}, {place_of(row)}"
        drawn = pipeline_figures.all_of(row, f"{title}, {row.get('pipeline', '')}")
        if drawn:
            found.append((title, {f"{number}-{name}": figure for name, figure in drawn.items()}))
    return found


def settings(document):
    known = [(name, document.get(name)) for name in ("pipeline", "ranks", "batch", "microbatches")]
    return "; ".join(f"{name}: {value}" for name, value in known if value is not None)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="results of bench/pipelines")
    parser.add_argument("--out", default="pipeline-report", help="folder for the page and the pictures (default: %(default)s)")
    options = parser.parse_args(arguments)
    document = page.read(options.file, "results of bench/pipelines", complaint_about)
    os.makedirs(options.out, exist_ok=True)
    content = [page.given_table(table(document["results"]))]
    for heading, drawn in sections(document):
        if heading:
            content.append(f"<h2>{html.escape(heading)}</h2>")
        for name, figure in drawn.items():
            svg = to_svg(figure, name)
            page.write_picture(svg, os.path.join(options.out, name + ".svg"))
            content.append(f'<figure id="{name}">{svg}</figure>')
    commands = document.get("command", [])
    listed = [document | {"command": command} for command in (commands if isinstance(commands, list) else [commands])]
    path = os.path.join(options.out, "index.html")
    with open(path, "w", encoding="utf-8") as file:
        file.write(page.whole_page("Pipelines", "Pipelines, side by side", f'<p class="note">{html.escape(settings(document))}</p>\n' +
                                 "\n".join(content) + "\n<h2>Machines, versions and commands</h2>\n" + page.machines(listed)))
    print(f"Report: {path}")


if __name__ == "__main__":
    main()
