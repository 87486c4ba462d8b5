"""The pictures of a training report. Each function takes rows of shoal_train's JSON and returns a figure, or None if there is nothing to draw.

Colours are Okabe and Ito's, distinguishable by colour-blind readers; text and axes use the text colour of the page, light or dark.
"""
import io

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402  after the choice of backend

INK = "#010203"  # replaced by the page's text colour
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
HATCHES = ("", "//", "..", "xx", "\\\\", "--")  # for print without colours
pyplot.rcParams.update({"svg.fonttype": "none", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
                        "hatch.linewidth": 0.5, "figure.max_open_warning": 0} |
                       {key: INK for key in ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "axes.titlecolor")})


def to_svg(figure, name):
    """The figure as an element for a page, in the colour of the surrounding text. `name` makes its identifiers unique among the figures."""
    pyplot.rcParams["svg.hashsalt"] = name
    output = io.StringIO()
    figure.savefig(output, format="svg", transparent=True, metadata={"Date": None})
    pyplot.close(figure)
    text = output.getvalue()
    return text[text.index("<svg"):].replace(INK, "currentColor")


KNOWN = ("shoal (next forward)", "gloo (backward)", "mpi (backward)", "nccl (backward)", "shoal (backward)", "gloo (next forward)")
PER_LINE = 5  # settings side by side


def contestant(row):
    return f"{row['backend']} ({row['overlap'].replace('_', ' ')})"


def _look(name):
    """Colour and hatching of a contestant, the same in every picture."""
    number = KNOWN.index(name) if name in KNOWN else len(KNOWN) - 1
    return COLOURS[number], HATCHES[number]


def setting(row):
    """What is compared side by side: all properties of a row except the backend."""
    hosts = f"{row['nodes']} hosts" if row["nodes"] > 1 else "1 host"
    where = f"{row['ranks']} ranks, {hosts}" if row["ranks"] > 1 else "1 rank"
    rate = f", {row['rate']}" if row.get("rate") and row["nodes"] > 1 else ""
    return f"{row['model']}\n{row.get('dataset_shown', row['dataset'])}, batch {row['batch_per_rank']}\n{where}{rate}"


def last_epochs(rows):
    """The last row of each setting and contestant."""
    return list({(setting(row), contestant(row)): row for row in rows}.values())


def _short(value):
    """Three digits, without an exponent."""
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _bars(rows, value, label, title, bottom=None, note=None):
    """Groups of bars: one group per setting, one bar per contestant, one line of panels for every PER_LINE settings. With `bottom` a bar has two
    parts: the time that training waited, solid, and `value` above it, hatched. note(row, the value as text) is the text above a bar."""
    rows = [row for row in last_epochs(rows) if value(row) is not None]
    if not rows:
        return None
    settings, names = list(dict.fromkeys(map(setting, rows))), list(dict.fromkeys(map(contestant, rows)))
    lines = [settings[at:at + PER_LINE] for at in range(0, len(settings), PER_LINE)]
    columns = max(map(len, lines))
    figure, panels = pyplot.subplots(len(lines), 1, figsize=(max(5.5, 3.0 + 1.6 * columns), 0.6 + 3.3 * len(lines)), layout="constrained",
                                     squeeze=False)
    width = 0.8 / len(names)
    for axes, shown in zip(panels.flat, lines):
        lines_above = 0
        for number, name in enumerate(names):
            mine = [row for row in rows if contestant(row) == name and setting(row) in shown]
            places = [shown.index(setting(row)) + (number - (len(names) - 1) / 2) * width for row in mine]
            lower = [bottom(row) for row in mine] if bottom else [0] * len(mine)
            colour, hatch = _look(name)
            if bottom:
                axes.bar(places, lower, width * 0.92, color=colour, edgecolor=INK, linewidth=0.4, label=f"{name}: waited for")
            bars = axes.bar(places, [value(row) for row in mine], width * 0.92, bottom=lower, edgecolor=INK, linewidth=0.4,
                            color="none" if bottom else colour, hatch="///" if bottom else hatch,
                            label=None if bottom else name)
            texts = [_short(low + value(row)) for low, row in zip(lower, mine)]
            if note:
                texts = [note(row, text) for row, text in zip(mine, texts)]
            lines_above = max([lines_above, *(text.count("\n") for text in texts)])
            axes.bar_label(bars, texts, fontsize=7)
        axes.set_xticks(range(len(shown)), shown, fontsize=8)
        axes.set_xlim(-0.6, columns - 0.4)
        axes.margins(y=0.12 + 0.07 * lines_above)  # keeps the text above a bar below the title
        axes.set_ylabel(label, fontsize=9)
    handles, _ = panels[0][0].get_legend_handles_labels()
    if bottom:
        handles.append(matplotlib.patches.Patch(facecolor="none", edgecolor=INK, linewidth=0.4, hatch="///", label="all: hidden"))
    panels[0][0].legend(handles=handles, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    figure.suptitle(title, fontsize=11)
    return figure


def throughput(rows):
    return _bars(rows, lambda row: row["images_per_s"], "images per second, all ranks", "Throughput")


def overview(rows):
    """A run in one picture: images/s, with the speed-up over one rank if known, and that of shoal over the fastest other backend."""
    rates = {}
    for row in last_epochs(rows):
        if row["images_per_s"]:
            rates.setdefault(setting(row), []).append((row["images_per_s"], row["backend"]))

    def note(row, text):
        lines = [text]
        if row.get("speedup_vs_1") is not None and row["ranks"] > 1:
            lines.append(f"{row['speedup_vs_1']:.2f} x\n1 rank")
        others = [known for known in rates[setting(row)] if known[1] != "shoal"]
        if row["backend"] == "shoal" and others:
            rate, name = max(others)
            lines.append(f"{row['images_per_s'] / rate:.2f} x\n{name}")
        return "\n".join(lines)

    return _bars(rows, lambda row: row["images_per_s"], "images per second, all ranks", "Throughput and speed-up", note=note)


def step_time(rows):
    """For the measured steps."""
    return _bars(rows, lambda row: 1e3 * row["seconds"] / row["steps"] if row["steps"] else None, "milliseconds per step", "Time of a step")


def _is_whole(row):
    """Whether every step of the epoch was made and measured."""
    return row.get("epoch_steps") is not None and row["steps"] >= row["epoch_steps"]


def epoch_time(rows):
    """Measured if a whole epoch was, else projected: the images of an epoch, divided by images/s."""
    chosen = {}
    for row in rows:
        key = (setting(row), contestant(row))
        if key not in chosen or _is_whole(row) or not _is_whole(chosen[key]):
            chosen[key] = row

    def seconds(row):
        if _is_whole(row):
            return row["seconds"]
        return row["train_images"] / row["images_per_s"] if row.get("train_images") and row["images_per_s"] else None

    return _bars(list(chosen.values()), seconds, "seconds per epoch", "Time of an epoch (~: projected from images/s, no whole epoch was measured)",
                 note=lambda row, text: text if _is_whole(row) else "~" + text)


def communication(rows):
    def exposed(row):
        return 1e3 * row["comm_exposed_s"] / row["steps"]

    def hidden(row):
        if not row["steps"] or row["ranks"] == 1 or row["comm_busy_s"] is None:
            return None
        return max(0.0, 1e3 * row["comm_busy_s"] / row["steps"] - exposed(row))

    return _bars(rows, hidden, "milliseconds per step", "Communication: time that training waited, and time hidden behind training", bottom=exposed)


def bandwidth(rows):
    return _bars(rows, lambda row: row["busbw_gbs"], "GB/s on the bus while busy", "Bandwidth of the averages of gradients")


def speedup(rows):
    """Over one rank, if known: see speedups.py."""
    return _bars(rows, lambda row: row.get("speedup_vs_1") if row["ranks"] > 1 else None, "times the images/s of one rank",
                 "Speed-up over one rank with as many threads, on the same machine")


def ratios(rows):
    """shoal's images/s divided by that of the fastest other backend, setting by setting."""
    found = {}
    for row in last_epochs(rows):
        if row["images_per_s"] and row["ranks"] > 1:
            found.setdefault(setting(row), {})[row["backend"]] = row["images_per_s"]
    values = {where: rates["shoal"] / max(rate for name, rate in rates.items() if name != "shoal") for where, rates in found.items()
              if "shoal" in rates and len(rates) > 1}
    if len(values) < 2:
        return None
    figure, axes = pyplot.subplots(figsize=(8.5, 1.2 + 0.25 * len(values)), layout="constrained")
    labels = [where.replace("\n", ", ") for where in values]
    axes.barh(range(len(values)), [value - 1 for value in values.values()], left=1, height=0.7, edgecolor=INK, linewidth=0.4,
              color=[COLOURS[0] if value >= 1 else COLOURS[5] for value in values.values()])
    for place, value in enumerate(values.values()):
        axes.annotate(f"{value:.2f}", (max(value, 1), place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.axvline(1, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(values)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.12, y=0.01)
    axes.set_xlabel("images/s of shoal over those of the better other backend\n(left of 1, orange: shoal is slower)", fontsize=9)
    axes.set_title("Side by side")
    return figure


def predictions(rows):
    """Efficiency on many nodes: one panel per platform, one line per network."""
    if not rows:
        return None
    platforms = list(dict.fromkeys(row["platform"] for row in rows))
    figure, panels = pyplot.subplots(1, len(platforms), figsize=(1.5 + 4.2 * len(platforms), 3.8), layout="constrained", squeeze=False, sharey=True)
    for axes, platform in zip(panels.flat, platforms):
        for number, network in enumerate(dict.fromkeys(row["network"] for row in rows)):
            mine = [row for row in rows if (row["platform"], row["network"]) == (platform, network)]
            axes.plot([row["nodes"] for row in mine], [100 * row["efficiency"] for row in mine], marker="osD^v<>"[number % 7],
                      color=COLOURS[number % len(COLOURS)], linestyle=("-", "--", ":", "-.")[number % 4], label=network)
        axes.set_xscale("log", base=2)
        axes.set_xticks([row["nodes"] for row in mine], [str(row["nodes"]) for row in mine])
        axes.set_ylim(0, 105)
        axes.set_title(platform, fontsize=10)
        axes.set_xlabel("nodes")
    panels[0][0].set_ylabel("% of the speed of as many ranks alone")
    panels[0][-1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    figure.suptitle("Predicted, not measured: efficiency on many nodes")
    return figure


def accuracy(rows):
    """On the test images against training time: one panel for each setting."""
    panels = {}
    for row in rows:
        points = panels.setdefault(setting(row), {}).setdefault(contestant(row), [(0.0, None)])
        points.append((points[-1][0] + row["seconds"], row["accuracy"]))
    known = {}
    for where, lines in panels.items():
        kept = {name: [(seconds, 100 * value) for seconds, value in points if value is not None] for name, points in lines.items()}
        kept = {name: points for name, points in kept.items() if points}
        if kept:
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
            axes.plot(*zip(*points), marker="osD^v<>"[number % 7], color=_look(name)[0], linestyle=("-", "--", ":", "-.")[number % 4], label=name)
        axes.set_title(where, fontsize=8)
        axes.set_xlabel("seconds of training")
        axes.legend(fontsize=7)
    panels_axes[0][0].set_ylabel("% of the test images right")
    figure.suptitle("Accuracy against time")
    return figure


def utilisation(turns, title):
    """CPU use, and GPU use if there are GPUs, of the ranks over time: measured over the processes in every turn."""
    turns = [turn for turn in turns if turn.get("seconds")]
    if not turns:
        return None
    kinds = [("CPU: % of one core, per rank", lambda turn: 100 * turn["cpu_s"] / turn["seconds"])]
    if any(turn.get("gpu_percent") is not None for turn in turns):
        kinds.append(("GPU: % of time", lambda turn: turn.get("gpu_percent") or 0))
    figure, panels = pyplot.subplots(len(kinds), 1, figsize=(8, 0.6 + 2.4 * len(kinds)), layout="constrained", squeeze=False, sharex=True)
    for axes, (label, value) in zip(panels.flat, kinds):
        for name in dict.fromkeys(map(contestant, turns)):
            colour, hatch = _look(name)
            for index, turn in enumerate(turn for turn in turns if contestant(turn) == name):
                axes.bar(turn["time_s"] - turn["seconds"], value(turn), turn["seconds"], align="edge", color=colour, hatch=hatch, edgecolor=INK,
                         linewidth=0.4, label=name if index == 0 else None)
        axes.set_ylim(bottom=0)
        axes.set_ylabel(label, fontsize=9)
    panels[-1][0].set_xlabel("seconds since the start")
    panels[0][0].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    figure.suptitle(f"Use of the processor while the backends take turns\n{title}", fontsize=10)
    return figure


KINDS = {"load": "#999999", "forward": "#56B4E9", "backward": "#0072B2", "wait": "#D55E00", "update": "#F0E442", "gradients": "#009E73",
         "blocking": "#CC79A7", "node reduce": "#E69F00", "wire": "#882255", "node gather": "#AA9900"}
WORDS = {"gradients": "average of gradients", "blocking": "buffers", "wait": "wait for communication"}
ROW_KINDS = (("training", ("load", "forward", "backward", "wait", "update")), ("averages", ("gradients", "blocking")),
             ("node reduce", ("node reduce",)), ("wire", ("wire",)), ("node gather", ("node gather",)))


def _levels(spans):
    """([(begin, duration, level)], number of levels): overlapping spans are drawn below each other."""
    placed, ends = [], []
    for begin, duration in sorted(spans):
        level = next((number for number, end in enumerate(ends) if end <= begin + 1e-3), len(ends))
        ends[level:level + 1] = [begin + duration]
        placed.append((begin, duration, level))
    return placed, max(1, len(ends))


def _merged(spans, gap):
    """Merges spans (begin, duration) that are at most `gap` apart: a network has too many layers to show each one."""
    together = []
    for begin, duration in sorted(spans):
        if together and begin <= sum(together[-1]) + gap:
            together[-1] = (together[-1][0], begin + duration - together[-1][0])
        else:
            together.append((begin, duration))
    return together


def timeline(events, title):
    """One step on every rank: training above, then averages in flight and, if recorded, their stages."""
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    events = [event for event in events if event["ph"] == "X"]
    if not events:
        return None
    start = {}
    for event in events:
        if event["tid"] == 0:
            start[event["pid"]] = min(event["ts"], start.get(event["pid"], event["ts"]))
    lanes = [(pid, row, kinds) for pid in sorted(start) for row, kinds in ROW_KINDS
             if any(event["pid"] == pid and event["cat"] in kinds for event in events)]
    figure, axes = pyplot.subplots(figsize=(11, 1.0 + 0.24 * len(lanes)), layout="constrained")
    shortest = 0.003 * max(event["ts"] + event["dur"] - start[event["pid"]] for event in events if event["tid"] == 0) / 1e3
    for place, (pid, row, kinds) in enumerate(lanes):
        for kind in kinds:
            spans = [((event["ts"] - start[pid]) / 1e3, event["dur"] / 1e3) for event in events if event["pid"] == pid and event["cat"] == kind]
            if row == "training":
                spans = [span for span in spans if span[1] > shortest] if kind == "wait" else _merged(spans, shortest)
            spans, depth = _levels(spans)
            for begin, duration, level in spans:
                axes.broken_barh([(begin, duration)], (place - 0.42 + 0.84 * level / depth, 0.84 / depth), facecolors=KINDS[kind], edgecolor=INK,
                                 linewidth=0.15)
    axes.set_yticks(range(len(lanes)), [f"{names.get(pid, pid)}: {row}" if row == "training" else row for pid, row, _ in lanes], fontsize=7)
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.set_xlabel("milliseconds since the step began on this rank")
    axes.set_title(f"One step, {title}: averages during backward and the next forward", fontsize=11)
    axes.legend(handles=[matplotlib.patches.Patch(facecolor=colour, edgecolor=INK, linewidth=0.3, label=WORDS.get(kind, kind))
                         for kind, colour in KINDS.items() if any(event["cat"] == kind for event in events)], fontsize=8, loc="upper left",
                bbox_to_anchor=(1, 1))
    return figure
