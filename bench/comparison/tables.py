"""Markdown: one row for each group and peer, and one table of every size. A size at which shoal is slower is shown in bold."""
import textwrap

from comparison.results import LARGE_BYTES, NAMES, geometric_mean, ratios, rows
from comparison.runs import STOLEN_SHARE
from comparison.targets import judge
from perf.plot import size_label

BUSY_SHARE = 0.1  # of the machine, used by others: figures above tell little


def ratio(value, size=None):
    text = f"{value:.2f} x" + (f" at {size_label(size)}" if size else "")
    return f"**{text}**" if value < 1 else text


def time(us):
    return f"{us:.2f}" if us < 10 else f"{us:.0f}" if us < 10000 else f"{us / 1000:.1f} ms"


def outcome(verdict):
    """A target and what was measured."""
    if verdict.value is None:
        return f"{verdict.target}: not measured"
    return f"{verdict.target}: {verdict.value:.2f}" + (f" at {size_label(verdict.size)}" if verdict.size else "")


def command_block(command):
    """An indented code block. Long commands continue on the next line."""
    return "    " + " \\\n      ".join(textwrap.wrap(command, 108, break_long_words=False, break_on_hyphens=False))


def percent_of_limit(row):
    """Shorter messages than 4 MiB pass a link's token bucket faster than its rate."""
    return f"{100 * row['limit_fraction']:.0f} %" if row["limit_fraction"] is not None and row["bytes"] >= 4 << 20 else ""


def noise(document):
    busy, stolen = document.get("busy_share", 0), document.get("stolen_share", 0)
    text = f" **Others used {100 * busy:.0f} % of the machine before this was measured.**" if busy > BUSY_SHARE else ""
    return text + (f" **The machine's host took {100 * stolen:.0f} % of its time meanwhile.**" if stolen > STOLEN_SHARE else "")


def line(cells):
    return "| " + " | ".join(cells) + " |"


def targets_of(group, peer):
    """The targets of a group that belong in the row of `peer`; targets without a peer belong in the first row."""
    first = peer is None or peer == group["peers"][0]
    return [target for target in group["targets"] if target.get("peer") == peer or (first and "peer" not in target)]


def cell_of_targets(group, peer, document):
    verdicts = [judge(target, document) for target in targets_of(group, peer)]
    return f"{sum(verdict.met for verdict in verdicts)} of {len(verdicts)}"


def summary_row(group, peer, document):
    if peer is None:
        return line([group["title"], "its own float32", "", "", "", "", "", cell_of_targets(group, peer, document)])
    of_peer, mine = ratios(document, peer), rows(document, "shoal")
    if not of_peer:
        return line([group["title"], NAMES[peer], "**not measured**", "", "", "", "", ""])
    worst = min(of_peer, key=of_peer.get)
    large = [value for size, value in of_peer.items() if size >= LARGE_BYTES]
    limits = [row["limit_fraction"] for size, row in mine.items() if size >= 4 << 20 and row["limit_fraction"] is not None]
    biggest = max(of_peer)
    cpu = f"{mine[biggest]['cpu_s_per_gb']:.2f}, {rows(document, peer)[biggest]['cpu_s_per_gb']:.2f}"
    return line([group["title"], NAMES[peer], ratio(geometric_mean(of_peer.values())), ratio(geometric_mean(large)) if large else "",
                 ratio(of_peer[worst], worst), f"{100 * min(limits):.0f} %" if limits else "", cpu, cell_of_targets(group, peer, document)])


def missed_targets(groups, documents):
    """A list item for each target that is not met."""
    verdicts = [(group["title"], judge(target, documents[group["name"]])) for group in groups if group["name"] in documents
                for target in group["targets"]]
    return "\n".join(f"- {title}: {outcome(verdict)}" for title, verdict in verdicts if not verdict.met)


def summary(groups, documents):
    """One row for each group and peer, then the targets that are not met."""
    head = ["work", "beside", "all sizes", "from 64 KiB", "least", "of limit", "CPU s/GB", "targets"]
    lines = [line(head), "|" + "---|" * len(head)]
    for group in groups:
        if group["name"] in documents:
            lines += [summary_row(group, peer, documents[group["name"]]) for peer in group["peers"] or [None]]
    missed = missed_targets(groups, documents)
    return "\n".join(lines) + (f"\n\nTargets not met:\n\n{missed}" if missed else "")


SUMMARY_NOTES = """- all sizes, from 64 KiB: geometric mean of the peer's time over shoal's. least: the smallest ratio, and its size.
- of limit: least share, from 4 MiB up, of what the links allow.
- CPU s/GB: CPU seconds of all ranks per GB of the largest message, of shoal and of the peer.
- targets: how many are met of those that concern this peer."""


def summary_page(groups, documents):
    """The page of a folder: a table by size, a row for each group and peer, the targets that are not met."""
    if "collective" in groups[0]:
        parts = ["# Other collectives beside Open MPI and Gloo, float32", matrices(groups, documents)]
    else:
        parts = ["# AllReduce beside Open MPI and Gloo, float32 sum"]
        if any("headline" in group and group["name"] in documents for group in groups):
            parts += ["shoal's time in microseconds (median of interleaved rounds); Open MPI's time over shoal's, in bold where shoal is\n"
                      "slower; from 4 MiB the share of what the links allow. Emulated hosts are joined at 1 Gbit/s.",
                      headline(groups, documents)]
    return "\n\n".join(parts + ["## Groups and targets", SUMMARY_NOTES, summary(groups, documents)]) + "\n"


def matrix(groups, documents, peer):
    """Of groups of one shape that measure a collective each: the ratio at every size."""
    columns = [group for group in groups if group["name"] in documents]
    of_groups = [ratios(documents[group["name"]], peer) for group in columns]
    lines = [line(["size"] + [group["collective"] for group in columns]), "|" + "---|" * (len(columns) + 1)]
    for size in sorted(set().union(*of_groups)):
        lines.append(line([size_label(size)] + [ratio(values[size]) if size in values else "" for values in of_groups]))
    return "\n".join(lines)


def matrices(groups, documents):
    """One matrix for each shape and peer of groups that name a collective."""
    parts = []
    for shape in dict.fromkeys(group["shape"] for group in groups):
        of_shape = [group for group in groups if group["shape"] == shape and group["name"] in documents]
        for peer in of_shape[0]["peers"] if of_shape else []:
            parts.append(f"{of_shape[0]['title'].split(':')[0]}, {NAMES[peer]}'s time over shoal's:\n\n{matrix(of_shape, documents, peer)}")
    return "\n\n".join(parts)


def table_of_sizes(group, document):
    """Times of one group with their spread, size by size."""
    mine = rows(document, "shoal")
    peers = [peer for peer in group["peers"] if ratios(document, peer)]
    head = ["size", "shoal, us", "10 .. 90 %", "algorithm", "of the limit"] + [f"{NAMES[peer]}{extra}" for peer in peers for extra in (", us", "")]
    lines = [line(head), "|" + "---|" * len(head)]
    over = {peer: ratios(document, peer) for peer in peers}
    for size, row in mine.items():
        cells = [size_label(size), time(row["latency_us"]), f"{time(row['latency_us_p10'])} .. {time(row['latency_us_p90'])}", row["algorithm"],
                 percent_of_limit(row)]
        for peer in peers:
            theirs = rows(document, peer).get(size)
            cells += [time(theirs["latency_us"]) + (f" ({theirs['algorithm']})" if peer == "openmpi" else ""),
                      ratio(over[peer][size])] if theirs else ["", ""]
        lines.append(line(cells))
    return "\n".join(lines)


def headline(groups, documents):
    """Size by size, for the groups that have a `headline`: shoal's time, Open MPI's over it, and the share of the links' limit."""
    columns = [group for group in groups if "headline" in group and group["name"] in documents]
    mine = [rows(documents[group["name"]], "shoal") for group in columns]
    theirs = [ratios(documents[group["name"]], "openmpi") for group in columns]
    lines = [line(["size"] + [group["headline"] for group in columns]), "|" + "---|" * (len(columns) + 1)]
    for size in sorted(set().union(*mine)):
        cells = [", ".join(filter(None, [time(of_size[size]["latency_us"]), ratio(over[size]) if size in over else "",
                                         percent_of_limit(of_size[size])])) if size in of_size else ""
                 for of_size, over in zip(mine, theirs)]
        lines.append(line([size_label(size)] + cells))
    means = [geometric_mean(value for size, value in over.items() if size >= LARGE_BYTES) for over in theirs]
    lines.append(line(["geometric mean from 64 KiB"] + [ratio(mean) if mean else "" for mean in means]))
    return "\n".join(lines)


def table_of_types(document):
    """Times of types of 2 bytes beside those of as many float32."""
    wide = rows(document, "shoal", "float32")
    types = [type_ for type_ in ("bfloat16", "float16") if rows(document, "shoal", type_)]
    lines = [line(["elements", "float32, us"] + [f"{type_}{extra}" for type_ in types for extra in (", us", " / float32")])]
    lines.append("|" + "---|" * (2 + 2 * len(types)))
    for size, row in wide.items():
        cells = [f"{size // 4:,}", time(row["latency_us"])]
        for type_ in types:
            half = rows(document, "shoal", type_).get(size // 2)
            cells += [time(half["latency_us"]), f"{half['latency_us'] / row['latency_us']:.2f}"] if half else ["", ""]
        if any(cells[2:]):
            lines.append(line(cells))
    return "\n".join(lines)


def details(groups, documents):
    """The page of all groups: what was run, the verdict on each target, every size."""
    parts = ["# Comparison",
             "Times are medians of interleaved rounds. A number with x is the peer's time over shoal's: the median of the rounds'\n"
             "ratios, in bold where shoal is slower."]
    for group in groups:
        if group["name"] not in documents:
            continue
        document = documents[group["name"]]
        machine = document["machine"]
        parts += [f"## {group['title']}", f"{machine['cpu']}, {machine['cores']} cores.{noise(document)}", command_block(document["command"])]
        verdicts = [judge(target, document) for target in group["targets"]]
        parts.append("\n".join(f"- {'met' if verdict.met else '**not met**'}: {outcome(verdict)}" for verdict in verdicts))
        parts.append(table_of_sizes(group, document) if group["peers"] else table_of_types(document))
    return "\n\n".join(parts) + "\n"
