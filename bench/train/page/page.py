"""Writes the report of trainings as one self-contained page, and its pictures: page.py [--out FOLDER] [--trace FILE] RESULTS.json...
Or only one picture: page.py --plot FILE.svg RESULTS.json...

The results are files of shoal_train --json, the trace is one of --trace. `shoal_train report` runs this. bench/study adds tables and
predictions; its results name their part of the study, and each part has its own pictures.
"""
import argparse
import html
import json
import os
import sys

import checks
try:
    import figures
    import pipeline_figures
except ImportError as error:
    sys.exit(f"shoal_train report needs Python's matplotlib: {error}")
import speedups

STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1a1a1a; --line: #cccccc; }
@media (prefers-color-scheme: dark) { :root { --page: #16181c; --ink: #e6e6e6; --line: #444a52; } }
body { background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
figure { margin: 2rem 0; overflow-x: auto; } figure svg { max-width: 100%; height: auto; }
.table { overflow-x: auto; } table { border-collapse: collapse; font-size: 0.85rem; }
td, th { border-bottom: 1px solid var(--line); padding: 0.3rem 0.7rem; text-align: left; }
td.missed { font-weight: bold; white-space: nowrap; } td.missed::before { content: "\\25bc\\a0"; } .note { max-width: 60rem; }
td.number { text-align: right; font-variant-numeric: tabular-nums; } code { overflow-wrap: anywhere; }
@media print { body { max-width: none; margin: 0; } }
"""
USUAL_NETWORK = "resnet18"  # its run is the example of a part of a study
COLUMNS = (("backend", "backend", None), ("overlap", "overlap", None), ("network", "model", None), ("images", "dataset_shown", None),
           ("ranks", "ranks", "{}"), ("hosts", "nodes", "{}"), ("link", "rate", None), ("device", "device", None),
           ("threads per rank", "threads", "{}"), ("batch per rank", "batch_per_rank", "{}"), ("epoch", "epoch", "{}"),
           ("steps measured", "steps", "{}"), ("seconds", "seconds", "{:.2f}"), ("images/s", "images_per_s", "{:.1f}"),
           ("times one rank", "speedup_vs_1", "{:.2f}"),
           ("exposed s", "comm_exposed_s", "{:.3f}"), ("busy s", "comm_busy_s", "{:.3f}"), ("bus GB/s", "busbw_gbs", "{:.3f}"),
           ("CPU %", "cpu_percent", "{:.0f}"), ("GPU %", "gpu_percent", "{:.0f}"), ("loss", "loss", "{:.4f}"), ("accuracy", "accuracy", "{:.4f}"))


def read(path, what, complaint_of=lambda document: None):
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        sys.exit(f"{path}: cannot be read as {what}: {error}")
    if complaint := complaint_of(document):
        sys.exit(f"{path}: does not contain {what}: {complaint}")
    return document


def read_results(path):
    document = read(path, "results of shoal_train --json", checks.of_results)
    data = document.get("data", {})
    for row in document["results"]:
        row["train_images"] = data.get("train_images")
        if data.get("kind") == "subset":
            row["dataset_shown"] = row["dataset"] + " subset"
    return document


def cell(row, key, form):
    value = row.get(key, row["dataset"] if key == "dataset_shown" else None)
    if value is None:
        return "<td></td>"
    if form is None:
        return f"<td>{html.escape(str(value))}</td>"
    return f'<td class="number">{form.format(value)}</td>'


def table(rows):
    head = "".join(f"<th>{title}</th>" for title, _, _ in COLUMNS)
    body = "\n".join("<tr>" + "".join(cell(row, key, form) for _, key, form in COLUMNS) + "</tr>" for row in rows)
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def machines(documents):
    """Every machine with its versions, and the commands run on it."""
    commands = {}
    for document in documents:
        facts = document.get("machine", {}) | {"commit": document.get("study", {}).get("commit")}
        known = [f"{html.escape(key.replace('_', ' '))}: {html.escape(str(value))}" for key, value in facts.items() if value is not None]
        commands.setdefault("; ".join(known), []).append(html.escape(document.get("command", "")))
    return "\n".join(f"<p>{facts}</p>\n<ul>{''.join(f'<li><code>{each}</code></li>' for each in mine)}</ul>" for facts, mine in commands.items())


def images_of(documents):
    """The training images, as the documents describe them."""
    said = dict.fromkeys(document["data"]["words"] for document in documents if "words" in document.get("data", {}))
    return f'<p class="note">Images: {html.escape("; ".join(said))}.</p>\n' if said else ""


def given_table(each):
    """A table of --tables. A cell that starts with "!" misses its target."""
    def cell_of(text):
        return f'<td class="missed">{html.escape(text[1:])}</td>' if text.startswith("!") else f"<td>{html.escape(text)}</td>"

    head = "".join(f"<th>{html.escape(title)}</th>" for title in each["head"])
    body = "\n".join("<tr>" + "".join(map(cell_of, row)) + "</tr>" for row in each["rows"])
    note = f'<p class="note">{html.escape(each["note"])}</p>' if each["note"] else ""
    return (f'<h2>{html.escape(each["title"])}</h2>\n{note}<div class="table"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n'
            "</tbody></table></div>")


def parts_of(documents):
    """{(part of a study, its title): its documents}; documents outside a study form one part without a name."""
    parts = {}
    for document in documents:
        study = document.get("study", {})
        parts.setdefault((study.get("part", ""), study.get("title", "")), []).append(document)
    return parts


def title_of(document):
    return figures.setting(document["results"][0]).replace("\n", ", ") if document["results"] else ""


def example(documents):
    """The document of a part whose processor use is drawn."""
    usual = [document for document in documents if document["results"] and document["results"][0]["model"] == USUAL_NETWORK]
    return (usual or documents)[0]


def draw(documents, traces, predicted):
    """[(heading or None, {name: figure})]."""
    every = [row for document in documents for row in document["results"]]
    sections = [(None, {"ratios": figures.ratios(every)})]
    for (part, title), mine in parts_of(documents).items():
        rows = [row for document in mine for row in document["results"]]
        drawn = {"throughput": figures.throughput(rows), "communication": figures.communication(rows), "bandwidth": figures.bandwidth(rows),
                 "epoch-time": figures.epoch_time(rows), "accuracy": figures.accuracy(rows)}
        for number, document in enumerate([example(mine)] if part else mine):
            drawn["utilisation" if part else f"utilisation-{number + 1}"] = figures.utilisation(document.get("turns", []), title_of(document))
        for number, row in enumerate(row for row in figures.last_epochs(rows) if row.get("pipeline_ranks")):
            about = f"{figures.setting(row)}, {row['pipeline']}".replace("\n", ", ")
            drawn |= {f"pipeline-{number + 1}-{name}": figure for name, figure in pipeline_figures.all_of(row, about).items()}
        if not part:
            drawn["step-time"] = figures.step_time(rows)
        sections.append((title or part or None, {f"{part}-{name}" if part else name: figure for name, figure in drawn.items()}))
    whole = {"speedup": figures.speedup(every), "predictions": figures.predictions(predicted)}
    for number, events in enumerate(traces):
        whole[f"timeline-{number + 1}"] = figures.timeline(events["traceEvents"], events["title"])
    sections.append(("All together" if len(sections) > 2 else None, whole))
    return [(heading, {name: figure for name, figure in drawn.items() if figure is not None}) for heading, drawn in sections]


def write_picture(svg, path):
    """As a separate file: black on white, independent of a page."""
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(svg.replace("<svg ", '<svg style="color:#000;background:#fff" ', 1).replace("currentColor", "#000000"))
    except OSError as error:
        sys.exit(f"{path}: cannot be written: {error.strerror}")


def plot(documents, path):
    figure = figures.overview([row for document in documents for row in document["results"]])
    if figure is None:
        sys.exit(f"{path}: not drawn: no turn was measured (the first two steps are never measured)")
    write_picture(figures.to_svg(figure, "plot"), path)


def whole_page(title, headline, content):
    """A whole page."""
    return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f"<title>{title}</title><style>{STYLE}</style></head><body>\n<h1>{html.escape(headline)}</h1>\n{content}\n</body></html>\n")


def main():
    parser = argparse.ArgumentParser(prog="shoal_train report", description="Writes one HTML page and SVG pictures from result files.")
    parser.add_argument("results", nargs="+", help="files of shoal_train --json")
    parser.add_argument("--out", default="training-report", help="folder for the page and the pictures (default: %(default)s)")
    parser.add_argument("--trace", action="append", default=[], help="file of shoal_train --trace; may be repeated")
    parser.add_argument("--plot", metavar="FILE.svg", help="write only the picture of images/s and speed-ups, as this file")
    parser.add_argument("--pictures", nargs="*", metavar="NAME", help="write only these as separate files (default: all)")
    parser.add_argument("--headline", default="Training, side by side", help="heading of the page (default: %(default)s)")
    parser.add_argument("--tables", help="tables of bench/study")
    parser.add_argument("--predictions", help="predictions of bench/study")
    arguments = parser.parse_args()
    documents = speedups.fill([read_results(path) for path in arguments.results])
    if arguments.plot:
        plot(documents, arguments.plot)
        return
    traces = []
    for path in arguments.trace:
        trace = read(path, "events of shoal_train --trace", checks.of_trace)
        traces.append({"traceEvents": trace["traceEvents"], "title": trace.get("otherData", {}).get("title", os.path.basename(path))})
    tables = read(arguments.tables, "tables of bench/study") if arguments.tables else []
    predicted = read(arguments.predictions, "predictions of bench/study")["results"] if arguments.predictions else []
    try:
        os.makedirs(arguments.out, exist_ok=True)
    except OSError as error:
        sys.exit(f"{arguments.out}: could not be created: {error.strerror}")
    content = ["\n".join(map(given_table, tables))]
    for heading, drawn in draw(documents, traces, predicted):
        if heading and drawn:
            content.append(f"<h2>{html.escape(heading)}</h2>")
        for name, figure in drawn.items():
            svg = figures.to_svg(figure, name)
            if arguments.pictures is None or name in arguments.pictures:
                write_picture(svg, os.path.join(arguments.out, name + ".svg"))
            content.append(f'<figure id="{name}">{svg}</figure>')
    rows = [row for document in documents for row in document["results"]]
    page = os.path.join(arguments.out, "index.html")
    with open(page, "w", encoding="utf-8") as file:
        file.write(whole_page("Training with shoal", arguments.headline,
                              '<p class="note">Backends took turns in the same processes, from the same start, on the same images. Figures are '
                              "means over the ranks; images/s is the median of the turns. &#9660; marks a missed target.</p>\n" +
                              ("" if tables else images_of(documents)) + "\n".join(content) + "\n<h2>All rows</h2>\n" + table(rows) +
                              "\n<h2>Machines, versions and commands</h2>\n" + machines(documents)))
    print(f"Report: {page}")


if __name__ == "__main__":
    main()
