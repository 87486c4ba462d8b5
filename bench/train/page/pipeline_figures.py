"""The pictures of pipelines. Each function takes a row of shoal_train's JSON and returns a figure, or None for a row without what it draws."""
from figures import COLOURS, INK, matplotlib, pyplot

PARTS = (("computing", "busy_ms", COLOURS[0], ""), ("waiting for messages", "waiting_ms", COLOURS[5], "//"),
         ("idle: the pipeline fills or drains", "idle_ms", "#bbbbbb", ""))
MEMORY = (("measured", "peak_bytes", COLOURS[0], ""), ("predicted", "peak_bytes_predicted", COLOURS[1], "//"))
OPS = (("F", "forward", COLOURS[4]), ("B", "backward", COLOURS[0]))
INSIDE = {COLOURS[0]: "#ffffff"}  # of the text in a bar, whatever the colour of the page; black in others
MOST_LABELLED = 64  # actions of a rank whose microbatch fits into the picture
MIB = 2**20


def _ranks(row, *keys):
    """The ranks of a row, if it has these figures of each."""
    ranks = row.get("pipeline_ranks") or []
    return ranks if all(rank.get(key) is not None for rank in ranks for key in keys) else []


def _name(rank):
    more = "".join(f", {axis} {rank[axis]}" for axis in ("replica", "slice") if rank.get(axis))
    return f"rank {rank['rank']}: stage {rank['stage']}{more}"


def _axes(ranks, title, label):
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.45 * len(ranks)), layout="constrained")
    axes.set_yticks(range(len(ranks)), [_name(rank) for rank in ranks], fontsize=8)
    axes.set_ylim(len(ranks) - 0.4, -0.6)
    axes.set_xlabel(label)
    axes.set_title(title, fontsize=10)
    return figure, axes


def _legend(axes, kinds):
    axes.legend(handles=[matplotlib.patches.Patch(facecolor=colour, hatch=hatch, edgecolor=INK, linewidth=0.3, label=label)
                         for label, colour, hatch in kinds], fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))


def use_of_time(row, title):
    """How long each rank of a pipeline computed, waited and was idle in a step."""
    ranks = _ranks(row, *(key for _, key, _, _ in PARTS))
    if not ranks:
        return None
    figure, axes = _axes(ranks, f"A step of each rank, {title}", "milliseconds, mean of the measured steps")
    left = [0.0] * len(ranks)
    for _, key, colour, hatch in PARTS:
        widths = [max(0.0, rank[key]) for rank in ranks]
        axes.barh(range(len(ranks)), widths, left=left, color=colour, hatch=hatch, edgecolor=INK, linewidth=0.4)
        for place, (begin, width) in enumerate(zip(left, widths)):
            if width > 0.06 * sum(max(0.0, ranks[place][other]) for _, other, _, _ in PARTS):
                axes.text(begin + width / 2, place, f"{width:.0f}", ha="center", va="center", fontsize=8, color=INSIDE.get(colour, "#000000"))
        left = [begin + width for begin, width in zip(left, widths)]
    _legend(axes, [(label, colour, hatch) for label, _, colour, hatch in PARTS])
    return figure


def memory(row, title):
    """The most bytes that each rank had, beside the prediction."""
    ranks = _ranks(row, *(key for _, key, _, _ in MEMORY))
    if not ranks:
        return None
    figure, axes = _axes(ranks, f"Peak memory of each rank, {title}", "MiB of tensors")
    for number, (_, key, colour, hatch) in enumerate(MEMORY):
        places = [place - 0.2 + 0.4 * number for place in range(len(ranks))]
        bars = axes.barh(places, [rank[key] / MIB for rank in ranks], 0.38, color=colour, hatch=hatch, edgecolor=INK, linewidth=0.4)
        axes.bar_label(bars, fmt="%.1f", fontsize=7, padding=2)
    _legend(axes, [(label, colour, hatch) for label, _, colour, hatch in MEMORY])
    return figure


def timeline(row, title):
    """The forwards and backwards of the last step on each rank, with their microbatches."""
    ranks = _ranks(row, "last_step")
    if not any(rank["last_step"] for rank in ranks):
        return None
    figure, axes = _axes(ranks, f"The last step, {title}", "milliseconds since the step began on the rank")
    stages = len({action["stage"] for rank in ranks for action in rank["last_step"]})
    inside = {op: INSIDE.get(colour, "#000000") for op, _, colour in OPS}
    for place, rank in enumerate(ranks):
        for op, _, colour in OPS:
            spans = [(action["begin_ms"], action["end_ms"] - action["begin_ms"]) for action in rank["last_step"] if action["op"] == op]
            axes.broken_barh(spans, (place - 0.4, 0.8), facecolors=colour, edgecolor=INK, linewidth=0.3)
        for action in rank["last_step"] if len(rank["last_step"]) <= MOST_LABELLED else []:
            chunk = f"{action['stage']}:" if stages > len(ranks) else ""
            axes.text((action["begin_ms"] + action["end_ms"]) / 2, place, f"{chunk}{action['microbatch']}", ha="center", va="center", fontsize=6,
                      clip_on=True, color=inside.get(action["op"], "#000000"))
    _legend(axes, [(f"{label}, with its microbatch", colour, "") for _, label, colour in OPS])
    return figure


def all_of(row, title):
    """{name: figure} of what there is for this row."""
    drawn = {"step": use_of_time(row, title), "memory": memory(row, title), "timeline": timeline(row, title)}
    return {name: figure for name, figure in drawn.items() if figure is not None}
