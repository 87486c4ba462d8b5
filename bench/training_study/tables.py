"""Tables and verdicts of a study, for the report and as Markdown. A cell that starts with "!" is a figure that misses its target."""
import math
import statistics
import textwrap

from comparison.results import geometric_mean
from training_study import rates, rows

NAMES = {"shoal": "shoal", "gloo": "Gloo", "mpi": "Open MPI"}
NEARLY = 0.995  # of a bound: 0.997 x reads "1.00 x"


def table(title, note, head, lines):
    return {"title": title, "note": note, "head": head, "rows": lines}


def images_of(document):
    """The name of the data set, with "subset" if only a part of it was used."""
    name = document["results"][0]["dataset"]
    return name + " subset" if document["data"]["kind"] == "subset" else name


def words_of(documents):
    """The full description of the images of `documents`."""
    descriptions = dict.fromkeys(document["data"]["words"] for document in documents.values() if "data" in document)
    return f"Images: {'; '.join(descriptions)}." if descriptions else ""


def last(document):
    """{backend: its last row}."""
    return {row["backend"]: row for row in document["results"]}


def per_step_ms(row, key):
    return 1e3 * row[key] / row["steps"] if row["steps"] else None


def better(backends):
    """The row of the faster backend other than shoal."""
    others = [row for name, row in backends.items() if name != "shoal" and row["images_per_s"]]
    return max(others, key=lambda row: row["images_per_s"]) if others else None


def ratio(document):
    """shoal's images/s divided by those of the better other backend; None if one is missing."""
    backends = last(document)
    other = better(backends)
    mine = backends.get("shoal")
    return mine["images_per_s"] / other["images_per_s"] if other and mine and mine["images_per_s"] else None


def marked(text, met):
    return text if met else "!" + text


def number(value, form="{:.1f}"):
    return "" if value is None else form.format(value)


def verdict(words, value, bound, form="{:.2f}", at_most=False):
    """The row of one target."""
    if value is None:
        return ["", words, "!not measured"]
    met = value <= bound / NEARLY if at_most else value >= bound * NEARLY
    return ["met" if met else "!not met", words, marked(form.format(value), met)]


def speeds(title, note, chosen, documents):
    """A line for each row: images/s of all backends, and the ratio of shoal to the better other one."""
    lines = []
    for row in chosen:
        document = documents[row.name]
        backends = last(document)
        other, value = better(backends), ratio(document)
        if value is None:
            continue
        share = other["comm_exposed_s"] / other["seconds"] if other["seconds"] else 0
        where = f"{row.hosts} hosts" if row.hosts > 1 else f"1 host, {row.ranks} ranks"
        lines.append([row.model, where, backends["shoal"]["rate"] or "", str(row.batch)] +
                     [number(backends.get(name, {}).get("images_per_s")) for name in rows.BACKENDS] +
                     [marked(f"{value:.2f} x", value >= NEARLY), number(backends["shoal"].get("speedup_vs_1"), "{:.2f} x"),
                      f"{100 * share:.0f} %"] +
                     [number(per_step_ms(backends[name], "comm_exposed_s")) if name in backends else "" for name in rows.BACKENDS])
    head = (["network", "cluster", "link", "batch per rank"] + [f"images/s: {NAMES[name]}" for name in rows.BACKENDS] +
            ["shoal / better", "shoal / one rank", "better exposes"] + [f"exposed ms: {NAMES[name]}" for name in rows.BACKENDS])
    one = "One rank: the same network and batch, as many threads, on the same machine; empty where that was not measured."
    return table(title, f"{note} {one}".strip(), head, lines)


def ratios(documents, part, models=None):
    chosen = [(row, ratio(documents[row.name])) for row in rows.rows_of([part], None)
              if row.name in documents and (models is None or row.model in models)]
    return [value for _, value in chosen if value is not None]


def wire_s(row):
    """The minimum time of a step's gradients on a host's link at its goodput; `row` is a result."""
    if not row.get("rate") or not row["rate"].endswith("bit") or row["nodes"] < 2:
        return None
    number_, unit = row["rate"][:-4], row["rate"][-4]
    bits = float(number_) * {"k": 1e3, "m": 1e6, "g": 1e9}[unit] * rates.GOODPUT
    return 8 * row["bytes"] / row["steps"] * 2 * (row["nodes"] - 1) / row["nodes"] / bits


def vgg_bounds(documents):
    """[(row, exposed, bound, wire, backward)] of VGG16 on shaped links, in seconds per step."""
    found = []
    for row in rows.rows_of(["rates-2x1", "rates-4x1", "1gbit-batch8", "1gbit-batch32"], None):
        document = documents.get(row.name)
        if row.model != "vgg16" or document is None:
            continue
        mine = last(document).get("shoal")
        profile = document["study"].get("profiles", {}).get("shoal")
        wire = wire_s(mine) if mine else None
        if wire is None or profile is None:
            continue
        found.append((row, mine["comm_exposed_s"] / mine["steps"], max(0.0, wire - profile["backward_s"]), wire, profile["backward_s"]))
    return found


def exposed_share(document):
    """The exposed part of shoal's step."""
    mine = last(document)["shoal"]
    return mine["comm_exposed_s"] / mine["seconds"]


def vgg_verdicts(documents):
    """Two rows, because a ratio exists only if the bound is above 0."""
    bounds = vgg_bounds(documents)
    ratios_ = [exposed / bound for _, exposed, bound, _, _ in bounds if bound > 0]
    lines = [verdict(f"VGG16: exposed over its bound, the most of {len(ratios_)} rows whose bound is not 0", max(ratios_) if ratios_ else None, 1.1,
                     at_most=True)]
    if hidden := [100 * exposed_share(documents[row.name]) for row, _, bound, _, _ in bounds if bound == 0]:
        lines.append(verdict(f"VGG16: exposed where backward could hide all (bound 0, so no ratio), % of the step, the most of {len(hidden)} rows",
                             max(hidden), 0.0, "{:.1f}", at_most=True))
    return lines


def vgg_table(documents):
    lines = []
    for row, exposed, bound, wire, backward in vgg_bounds(documents):
        over = number(exposed / bound, "{:.2f}") if bound else "no ratio over 0"
        lines.append([f"{row.hosts} hosts", last(documents[row.name])["shoal"]["rate"], str(row.batch), number(1e3 * wire), number(1e3 * backward),
                      number(1e3 * bound), marked(number(1e3 * exposed), exposed <= 1.1 * bound), over,
                      f"{100 * exposed_share(documents[row.name]):.1f} %"])
    return table("VGG16: exposed communication against its bound",
                 "The bound is the wire's time at the link's goodput (95.5 % of its rate, as shoal_perf measures it) less the time of backward; the "
                 "target is at most 1.1 times that. Where backward takes longer than the wire the bound is 0, which whatever is exposed exceeds. "
                 "Milliseconds of a step, of shoal.",
                 ["cluster", "link", "batch per rank", "wire", "backward", "bound", "exposed", "exposed / bound", "exposed, of the step"], lines)


def accuracies(documents):
    """{(dataset, network): {ranks: [accuracy in percent of each seed]}}."""
    found = {}
    for row in rows.rows_of(["accuracy"], None):
        if row.name in documents and (value := documents[row.name]["results"][-1].get("accuracy")) is not None:
            found.setdefault((row.dataset, row.model), {}).setdefault(row.ranks, []).append(100 * value)
    return {key: value for key, value in found.items() if len(value) == 2 and len({len(seeds) for seeds in value.values()}) == 1}


def standard_error(one, other, images):
    """The standard error, in points, of the difference of two accuracies in percent: binomial, with independent images."""
    return math.sqrt(sum(share * (100 - share) for share in (one, other)) / images)


def accuracy_table(documents):
    lines = []
    for (dataset, model), runs in accuracies(documents).items():
        means = [statistics.mean(runs[ranks]) for ranks in (1, 2)]
        difference = means[1] - means[0]
        document = documents[f"accuracy-{dataset}-seed1-2x1"]
        epochs = max(row["epoch"] for row in document["results"])
        images = document["data"]["test_images"]
        lines.append([images_of(document), model, str(epochs)] + [", ".join(f"{value:.2f}" for value in runs[ranks]) for ranks in (1, 2)] +
                     [", ".join(f"{two - one:+.2f}" for one, two in zip(runs[1], runs[2])), f"{standard_error(*means, images):.2f}",
                      marked(f"{difference:+.2f}", abs(difference) <= 0.5)])
    return table("Accuracy after the last epoch, three seeds",
                 "Percent of the test images. One process with batch 64, and two ranks over shoal with 32 each. Batch normalisation sees each rank's "
                 "images, so the two are not the same training. The target: means within 0.5 points; single seeds may lie further apart. "
                 "The standard error is that of the difference of one seed that follows from the number of test images alone (binomial, both runs "
                 "independent); what the seed changes comes on top of it.",
                 ["images", "network", "epochs", "one rank", "two ranks", "difference of each seed", "its standard error", "difference of the means"],
                 lines)


def epochs_made(document, backend):
    """All steps in epochs, including those that were not measured."""
    return sum(len(row["step_loss"]) / row["epoch_steps"] for row in document["results"] if row["backend"] == backend)


def setting_table(documents):
    lines = []
    for row in rows.rows_of(["setting"], None):
        if row.name not in documents:
            continue
        for backend, result in last(documents[row.name]).items():
            steps = sum(each["steps"] for each in documents[row.name]["results"] if each["backend"] == backend)
            lines.append([images_of(documents[row.name]), row.model, NAMES[backend], f"{epochs_made(documents[row.name], backend):.2f}",
                          str(steps), number(result["images_per_s"]),
                          number(result["loss"], "{:.3f}"), number(result["accuracy"] and 100 * result["accuracy"], "{:.2f}")])
    return table("The setting of the study: Adadelta 0.1, batch 128 over two ranks on two hosts, 1 Gbit/s",
                 "As many epochs of 20 as there was time for: the table says how many, or what part of one. Accuracy is that of the last of them.",
                 ["images", "network", "backend", "epochs made", "steps measured", "images/s", "loss", "accuracy, %"], lines)


def targets(documents):
    """One line for each target of the comparison."""
    lines = []
    for part, words in (("rates-2x1", "2 hosts"), ("rates-4x1", "4 hosts")):
        values = ratios(documents, part)
        complete = len(values) == len(rows.NETWORKS)
        lines.append(verdict(f"{words}, about half exposed: geometric mean of shoal / better", geometric_mean(values) if complete else None, 1.4))
        lines.append(verdict(f"{words}, about half exposed: the least of them", min(values) if complete else None, 1.0))
    for part, words in (("1gbit-batch8", "batch 8"), ("1gbit-batch32", "batch 32")):
        values = ratios(documents, part)
        lines.append(verdict(f"1 Gbit/s, {words}: the least shoal / better", min(values) if values else None, 1.0))
        values = ratios(documents, part, ("vgg16", "resnet18"))
        lines.append(verdict(f"1 Gbit/s, {words}: VGG16 and ResNet18, the least", min(values) if values else None, 1.3))
    lines += vgg_verdicts(documents)
    values = ratios(documents, "one-host")
    lines.append(verdict("one host, bound by compute: the least shoal / Gloo", min(values) if values else None, 0.98))
    differences = [abs(statistics.mean(runs[2]) - statistics.mean(runs[1])) for runs in accuracies(documents).values()]
    lines.append(verdict("accuracy: the largest difference of means, in points", max(differences) if differences else None, 0.5, at_most=True))
    return table("Targets", words_of(documents), ["", "target", "measured"], lines)


def scaling_table(predictions):
    nodes = [count for count in sorted({row["nodes"] for row in predictions}) if count in (2, 8, 32, 128, 512)]
    lines = []
    for platform in dict.fromkeys(row["platform"] for row in predictions):
        for network in dict.fromkeys(row["network"] for row in predictions):
            mine = {row["nodes"]: row for row in predictions if (row["platform"], row["network"]) == (platform, network)}
            some = next(iter(mine.values()))
            lines.append([platform, network, str(some["batch_per_rank"]), number(1e3 * some["alone_s"])] +
                         [f"{1e3 * mine[count]['step_s']:.1f}, {100 * mine[count]['efficiency']:.0f} %" for count in nodes])
    words = "; ".join(dict.fromkeys(row["words"] for row in predictions))
    return table("Predicted, not measured: step time on many nodes",
                 f"Milliseconds of a step, and efficiency over one rank alone. From compute times that were measured on one core of this machine and "
                 f"all_reduce times that SimGrid simulates (shoal simulate). {words}.",
                 ["platform", "network", "batch per rank", "alone"] + [f"{count} nodes" for count in nodes], lines)


def tables_of(documents, predictions):
    """All tables that have rows."""
    made = [targets(documents)]
    searched = "The rate was searched for with few steps; what the better one exposes here is of the run itself."
    for part, note in (("rates-2x1", searched), ("rates-4x1", searched), ("1gbit-batch8", ""), ("1gbit-batch32", ""), ("one-host", "")):
        made.append(speeds(rows.PARTS[part], note, [row for row in rows.rows_of([part], None) if row.name in documents], documents))
    made += [vgg_table(documents), accuracy_table(documents), setting_table(documents)]
    if predictions:
        made.append(scaling_table(predictions))
    return [each for each in made if each["rows"]]


def _markdown(head, lines):
    def cell(text):
        return f"**{text[1:]}**" if text.startswith("!") else text

    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *[[cell(text) for text in row] for row in lines]])


SUMMARY_NOTE = """shoal's images/s, and that over the images/s of the better of Gloo and Open MPI: DistributedDataParallel with each,
in turns in the same processes, the networks in their CIFAR-10 form, batch per rank. Every figure: tables.md."""
SUMMARY_TABLES = (("At the link rate at which the better peer waits for communication about half of its step, batch 8",
                   ("rates-2x1", "rates-4x1")),
                  ("At 1 Gbit/s, and on one host with 2 ranks (bound by compute, batch 32)", ("1gbit-batch8", "1gbit-batch32", "one-host")))
COLUMN_WORDS = {"rates-2x1": "2 hosts x 1", "rates-4x1": "4 hosts x 1", "1gbit-batch8": "batch 8", "1gbit-batch32": "batch 32",
                "one-host": "one host"}
SHAPE_WORDS = {"2x1": ", 2 hosts", "4x1": ", 4 hosts"}


def _column_head(part, shape):
    return COLUMN_WORDS[part] + (SHAPE_WORDS[shape] if part.startswith("1gbit") else "")


def speeds_by_network(documents, parts):
    """Markdown: a row for each network, a column for each part and shape."""
    every = rows.rows_of(parts, None)
    columns = list(dict.fromkeys((row.part, row.shape) for row in every))
    lines, of_column = [], {column: [] for column in columns}
    for model in rows.NETWORKS:
        cells = []
        for column in columns:
            row = next(row for row in every if (row.part, row.shape) == column and row.model == model)
            value = ratio(documents[row.name]) if row.name in documents else None
            if value is None:
                cells.append("")
                continue
            of_column[column].append(value)
            mine = last(documents[row.name])["shoal"]
            rate = f" at {mine['rate'].replace('mbit', ' Mbit/s')}" if row.rate is None else ""
            cells.append(f"{mine['images_per_s']:.0f}{rate}, " + (f"{value:.2f} x" if value >= NEARLY else f"**{value:.2f} x**"))
        lines.append([model, *cells])
    means = [f"{geometric_mean(values):.2f} x" if len(values) == len(rows.NETWORKS) else "" for values in of_column.values()]
    lines.append(["geometric mean", *means])
    return _markdown(["network", *[_column_head(part, shape) for part, shape in columns]], lines)


def summary_page(documents):
    """The short page: speeds by network, and every target."""
    parts = ["# Training beside Gloo and Open MPI, in short", SUMMARY_NOTE]
    for words, parts_of_table in SUMMARY_TABLES:
        parts += [f"{words}:", speeds_by_network(documents, parts_of_table)]
    aims = targets(documents)
    return "\n\n".join(parts + ["## Targets", _markdown(aims["head"], aims["rows"])]) + "\n"


def to_markdown(tables):
    parts = ["# Training beside Gloo and Open MPI"]
    for each in tables:
        parts.append(f"## {each['title']}")
        if each["note"]:
            parts.append(textwrap.fill(each["note"], 118))
        parts.append(_markdown(each["head"], each["rows"]))
    return "\n\n".join(parts) + "\n"
