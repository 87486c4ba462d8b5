"""bench/pipelines and its page, with made-up results: nothing is trained."""
import html
import importlib.machinery
import importlib.util
import json
import os
import re
import sys

import pytest

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(REPOSITORY, "bench"))  # as for a program that runs there


def load(name):
    """A program of bench as a module, whatever the name of its file."""
    path = os.path.join(REPOSITORY, "bench", name)
    loader = importlib.machinery.SourceFileLoader(name.removesuffix(".py"), path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


pipelines, pipeline_page = load("pipelines"), load("pipeline_page.py")


def action(op, microbatch, begin_ms, stage):
    return {"op": op, "stage": stage, "microbatch": microbatch, "begin_ms": begin_ms, "end_ms": begin_ms + 10}


def rank(number, busy_ms, waiting_ms, idle_ms):
    return {"rank": number, "stage": number, "replica": 0, "slice": 0, "busy_ms": busy_ms, "waiting_ms": waiting_ms, "idle_ms": idle_ms,
            "peak_bytes": (30 + number) << 20, "peak_bytes_predicted": (28 + number) << 20,
            "last_step": [action("F", 0, 10.0 * number, number), action("B", 0, 40.0 - 10 * number, number)]}


class MadeUpNetwork:
    """In place of pipelines.Network. The pipeline wins over slow links only."""

    def __init__(self, model, options, folder):
        self.model = model
        self.last_row = {"pipeline": options.pipeline, "pipeline_ranks": [rank(0, 61, 27, 12), rank(1, 47, 0, 53)]}

    def measure(self, launch):
        slow = any("cluster" in word for word in launch)
        return {"shoal pipeline": [30, 40, 50], "torch pipeline": [20, 40, 25], "shoal data-parallel": [10, 10, 10] if slow else [80, 80, 80],
                "gloo data-parallel": [9, 8, 7] if slow else [79, 78, 77], "bubble": [0.25, 0.5, 0.3], "bubble_predicted": [0.125, 0.125, 0.125],
                "peak_bytes": [1, 1, 1], "peak_bytes_predicted": [1, 1, 1]}


@pytest.fixture(name="file")
def results_file(monkeypatch, tmp_path):
    """Written by bench/pipelines itself."""
    monkeypatch.setattr(pipelines, "Network", MadeUpNetwork)
    path = tmp_path / "pipelines.json"
    for rates in ([], ["--rates", "100mbit"]):
        monkeypatch.setattr(sys, "argv", ["pipelines", "--python", sys.executable, "--models", "tiny<net>", *rates, "--json", str(path)])
        if rates:
            before = json.loads(path.read_text())
        pipelines.main()
    both = json.loads(path.read_text())
    both["results"] += before["results"]
    path.write_text(json.dumps(both))
    return path


def test_table_has_data_parallelism_beside_the_pipeline(capsys, file):
    rows = re.findall(r"(?m)^\| tiny<net> \| (.*) \|$", capsys.readouterr().out)
    assert rows.count("one host | 40.0 | 25.0 | 1.50 | 80.0 | 78.0 | 0.50") == 2, rows  # when it is measured, and at the end
    assert rows.count("100mbit | 40.0 | 25.0 | 1.50 | 10.0 | 8.0 | 4.00") == 2, rows
    document = json.loads(file.read_text())
    assert [row["rate"] for row in document["results"]] == ["100mbit", None]
    assert document["results"][0]["pipeline_ranks"][1]["idle_ms"] == 53 and document["results"][0]["pipeline"] == "1f1b"


def test_page_shows_ranks_and_says_where_data_parallelism_wins(file, tmp_path):
    out = tmp_path / "page"
    pipeline_page.main([str(file), "--out", str(out)])
    text = (out / "index.html").read_text()
    cells = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", text) if "<td" in row]
    assert [[html.unescape(row[0]), row[1], row[2], row[4], row[6], row[7], row[8], row[9]] for row in cells] == [
        ["tiny<net>", "100mbit", "40.0", "10.0", "4.00", "30.0 %", "12.5 %", "shoal pipeline"],
        ["tiny<net>", "one host", "40.0", "80.0", "0.50", "30.0 %", "12.5 %", "shoal data-parallel"]]
    assert re.findall(r'<td class="missed">([^<]*)</td>', text) == ["0.50"]
    assert re.findall(r'<figure id="([^"]*)"', text) == ["throughput", *(f"{row}-{name}" for row in (1, 2)
                                                                         for name in ("step", "memory", "timeline"))]
    for name, facts in {"1-step": ["rank 1: stage 1", "61", "27", "53"], "2-memory": ["30.0", "28.0", "31.0", "29.0", "predicted"],
                        "1-timeline": ["forward", "backward"], "throughput": ["gloo data-parallel", "100mbit"]}.items():
        svg = (out / f"{name}.svg").read_text()
        assert all(re.search(rf"(?<![\d.]){re.escape(fact)}(?![\d.])", svg) for fact in facts), name


@pytest.mark.parametrize("worst, status", [(1.1, 0), (1.2, 1)])
def test_memory_above_the_prediction_fails(monkeypatch, capsys, tmp_path, worst, status):
    def made_up(model, partitions, schedule, *_):
        ratios = [0.5] * (partitions - 1) + [worst if schedule == "1f1b" else 1]
        ranks = [{"first_units": ["stem"], "peak_bytes": int(50e6 * ratio), "peak_bytes_predicted": 50_000_000} for ratio in ratios]
        return {"model": model, "partitions": partitions, "pipeline": schedule, "ranks": ranks}

    path = tmp_path / "memory.json"
    monkeypatch.setattr(pipelines, "measure_profile", lambda *_: None)
    monkeypatch.setattr(pipelines, "memory_of", made_up)
    monkeypatch.setattr(sys, "argv", ["pipelines", "--memory", "--models", "tiny<net>", "--json", str(path)])
    assert pipelines.main() == status
    rows = re.findall(r"(?m)^\| tiny<net> \| (.*) \|$", capsys.readouterr().out)
    assert rows.count("2 | simple | 25.0 50.0 | 0.500 1.000") == 2, rows  # when it is measured, and at the end
    marked = "**" if status else ""
    assert rows.count(f"4 | 1f1b | 25.0 25.0 25.0 {50 * worst:.1f} | 0.500 0.500 0.500 {marked}{worst:.3f}{marked}") == 2, rows
    assert len(json.loads(path.read_text())["results"]) == 4


def test_page_of_older_results_has_no_ranks(file, tmp_path):
    document = json.loads(file.read_text())
    for row in document["results"]:
        del row["pipeline_ranks"], row["pipeline"], row["figures"]["bubble"]
    file.write_text(json.dumps(document))
    pipeline_page.main([str(file), "--out", str(tmp_path)])
    assert re.findall(r'<figure id="([^"]*)"', (tmp_path / "index.html").read_text()) == ["throughput"]


@pytest.mark.parametrize("change, facts", [
    (lambda document: document.pop("results"), ["results"]),
    (lambda document: document["results"][1]["figures"].pop("gloo data-parallel"), ["row 2", "tiny<net>", "gloo data-parallel"]),
    (lambda document: document["results"][0]["figures"].update({"torch pipeline": []}), ["row 1", "torch pipeline"]),
    (lambda document: document["results"][0]["pipeline_ranks"][1].update(busy_ms="long"), ["busy_ms", "2", "number"]),
    (lambda document: document["results"][0]["pipeline_ranks"][0]["last_step"][1].pop("end_ms"), ["2", "end_ms"]),
])
def test_damaged_results_are_named(file, tmp_path, change, facts):
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))
    with pytest.raises(SystemExit) as raised:
        pipeline_page.main([str(file), "--out", str(tmp_path)])
    assert all(fact in str(raised.value) for fact in (str(file), *facts)), raised.value


def test_the_chosen_cut_is_shown_beside_the_best_one():
    rows = [{"cut": "body", "chosen": True, "slowest_ms_predicted": 90.0, "slowest_ms": [100.0, 300.0, 90.0], "images_per_s": [19.0, 1.0, 20.0]},
            {"cut": "head", "chosen": False, "slowest_ms_predicted": 80.0, "slowest_ms": [80.0], "images_per_s": [20.0]}]
    lines = pipelines.table_of_cuts("net", rows).splitlines()
    assert lines[:2] == ["| net | **body** | 19.0 | 90 | 100 | 0.90 |", "| net | head | 20.0 | 80 | 80 | 1.00 |"]
    assert "body, with 0.950 of" in lines[3]
