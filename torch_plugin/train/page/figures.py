"""The pictures of a training report. Each function takes rows of shoal_train's JSON and returns a figure, or None where there is nothing to draw.

Colours are Okabe and Ito's, which colour-blind people tell apart; text and axes take the colour of the page around them, light or dark.
"""
import io

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402  after the choice of backend

INK = "#010203"  # becomes the page's colour
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
HATCHES = ("", "//", "..", "xx", "\\\\", "--")  # for print without colours
pyplot.rcParams.update({"svg.fonttype": "none", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
                        "hatch.linewidth": 0.5} |
                       {key: INK for key in ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "axes.titlecolor")})


def to_svg(figure, name):
    """The figure as an element for a page; its ink is the colour of the text around it. `name` keeps its identifiers apart from other figures'."""
    pyplot.rcParams["svg.hashsalt"] = name
    output = io.StringIO()
    figure.savefig(output, format="svg", transparent=True, metadata={"Date": None})
    pyplot.close(figure)
    text = output.getvalue()
    return text[text.index("<svg"):].replace(INK, "currentColor")


def contestant(row):
    return f"{row['backend']} ({row['overlap'].replace('_', ' ')})"


def setting(row):
    """What is compared side by side: everything but who carries the gradients."""
    where = f"{row['ranks']} ranks, {row['nodes']} hosts" if row["ranks"] > 1 else "1 rank"
    rate = f"\n{row['rate']}" if row.get("rate") and row["nodes"] > 1 else ""
    return f"{row['model']}\n{row['dataset']}, batch {row['batch_per_rank']}\n{where}{rate}"


def _last_epochs(rows):
    return list({(setting(row), contestant(row)): row for row in rows}.values())


def _bars(rows, value, label, title, form="%.3g", bottom=None, bottom_label=None):
    """Groups of bars: a group a setting, a bar a contestant; `bottom` is a second part under each."""
    rows = [row for row in _last_epochs(rows) if value(row) is not None]
    if not rows:
        return None
    settings, names = list(dict.fromkeys(map(setting, rows))), list(dict.fromkeys(map(contestant, rows)))
    figure, axes = pyplot.subplots(figsize=(max(5.5, 2.4 + 1.3 * len(settings)), 4), layout="constrained")
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        mine = [row for row in rows if contestant(row) == name]
        places = [settings.index(setting(row)) + (number - (len(names) - 1) / 2) * width for row in mine]
        lower = [bottom(row) for row in mine] if bottom else [0] * len(mine)
        colour = COLOURS[number % len(COLOURS)]
        if bottom:
            axes.bar(places, lower, width * 0.92, color=colour, label=f"{name}: {bottom_label}")
        label_of_top = "all: hidden" if number == 0 else None
        bars = axes.bar(places, [value(row) for row in mine], width * 0.92, bottom=lower, edgecolor=INK, linewidth=0.3,
                        color="none" if bottom else colour, hatch="///" if bottom else HATCHES[number % len(HATCHES)],
                        label=label_of_top if bottom else name)
        if not bottom:
            axes.bar_label(bars, fmt=form, fontsize=8)
    axes.set_xticks(range(len(settings)), settings, fontsize=8)
    axes.set_ylabel(label)
    axes.set_title(title)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def throughput(rows):
    return _bars(rows, lambda row: row["images_per_s"], "images per second, all ranks", "Throughput")


def epoch_time(rows):
    """Of the measured steps."""
    return _bars(rows, lambda row: 1e3 * row["seconds"] / row["steps"] if row["steps"] else None, "milliseconds per step", "Time of a step")


def communication(rows):
    def exposed(row):
        return 1e3 * row["comm_exposed_s"] / row["steps"]

    def hidden(row):
        return max(0.0, 1e3 * row["comm_busy_s"] / row["steps"] - exposed(row)) if row["steps"] and row["ranks"] > 1 else None

    return _bars(rows, hidden, "milliseconds per step", "Communication: what training waited for, and what went on beside it", bottom=exposed,
                 bottom_label="exposed")


def bandwidth(rows):
    return _bars(rows, lambda row: row["busbw_gbs"], "GB/s on the bus while busy", "Bandwidth of the averages of gradients")


def speedup(rows):
    """Over one rank with the same network, images and batch, where such a run is among the rows."""
    alone = {(row["model"], row["dataset"], row["batch_per_rank"]): row["images_per_s"] for row in rows if row["ranks"] == 1 and row["images_per_s"]}

    def over_one(row):
        base = alone.get((row["model"], row["dataset"], row["batch_per_rank"]))
        return row["images_per_s"] / base if base and row["ranks"] > 1 and row["images_per_s"] else None

    return _bars(rows, over_one, "times the images/s of one rank", "Speed-up")


def accuracy(rows):
    """On the test images against training time: a panel for each setting."""
    panels = {}
    for row in rows:
        points = panels.setdefault(setting(row), {}).setdefault(contestant(row), [(0.0, None)])
        points.append((points[-1][0] + row["seconds"], row["accuracy"]))
    known = {}
    for where, lines in panels.items():
        kept = {name: [point for point in points if point[1] is not None] for name, points in lines.items()}
        if any(kept.values()):
            known[where] = kept
    if not known:
        return None
    columns = min(3, len(known))
    rows_of_panels = -(-len(known) // columns)
    figure, panels_axes = pyplot.subplots(rows_of_panels, columns, figsize=(3.6 * columns + 1.5, 3.4 * rows_of_panels), layout="constrained",
                                          squeeze=False)
    for axes in list(panels_axes.flat)[len(known):]:
        axes.set_visible(False)
    for axes, (where, lines) in zip(panels_axes.flat, known.items()):
        for number, (name, points) in enumerate(lines.items()):
            axes.plot(*zip(*points), marker="osD^v<>"[number % 7], color=COLOURS[number % len(COLOURS)], linestyle=("-", "--", ":", "-.")[number % 4],
                      label=name)
        axes.set_title(where, fontsize=8)
        axes.set_xlabel("seconds of training")
        axes.legend(fontsize=7)
    panels_axes[0][0].set_ylabel("accuracy on the test images")
    figure.suptitle("Accuracy against time")
    return figure


def utilisation(turns):
    """CPU use of the ranks over time, from what their processes took in every turn."""
    turns = [turn for turn in turns if turn.get("seconds")]
    if not turns:
        return None
    figure, axes = pyplot.subplots(figsize=(7, 3), layout="constrained")
    for number, name in enumerate(dict.fromkeys(map(contestant, turns))):
        mine = [turn for turn in turns if contestant(turn) == name]
        for index, turn in enumerate(mine):
            axes.fill_between([turn["time_s"] - turn["seconds"], turn["time_s"]], 100 * turn["cpu_s"] / turn["seconds"],
                              color=COLOURS[number % len(COLOURS)], hatch=HATCHES[number % len(HATCHES)], edgecolor=INK, linewidth=0.3,
                              label=name if index == 0 else None)
    axes.set_xlabel("seconds since the start")
    axes.set_ylabel("% of one core, per rank")
    axes.set_title("CPU use while the backends take turns")
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


KINDS = {"load": "#999999", "forward": "#56B4E9", "backward": "#0072B2", "wait": "#D55E00", "update": "#F0E442", "gradients": "#009E73",
         "blocking": "#CC79A7"}


def timeline(events):
    """One step on every rank: training above, communication below."""
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    events = [event for event in events if event["ph"] == "X"]
    if not events:
        return None
    lanes = sorted({(event["pid"], event["tid"]) for event in events})
    training = [event for event in events if event["tid"] == 0]
    start = {pid: min(event["ts"] for event in training if event["pid"] == pid) for pid in {event["pid"] for event in training}}
    figure, axes = pyplot.subplots(figsize=(10, 0.8 + 0.34 * len(lanes)), layout="constrained")
    for row, (pid, tid) in enumerate(lanes):
        for kind, colour in KINDS.items():
            mine = [event for event in events if (event["pid"], event["tid"]) == (pid, tid) and event["cat"] == kind]
            spans = [((event["ts"] - start[pid]) / 1e3, event["dur"] / 1e3) for event in mine]
            axes.broken_barh(spans, (row - 0.4, 0.8), facecolors=colour, edgecolor=INK, linewidth=0.15)
    axes.set_yticks(range(len(lanes)), [names.get(pid, str(pid)) if tid == 0 else "communication" for pid, tid in lanes], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds since the step began on this rank")
    axes.set_title("One step: communication beside backward and the next forward")
    axes.legend(handles=[matplotlib.patches.Patch(color=colour, label=kind) for kind, colour in KINDS.items()
                         if any(event["cat"] == kind for event in events)], fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return figure
