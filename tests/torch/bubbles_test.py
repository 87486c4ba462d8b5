"""bench/bubbles: short sleeps in place of long ones; the times are not judged but against the least that a step can take."""
import importlib.machinery
import importlib.util
import json
import os
import sys

import pytest

import support

BENCH = os.path.join(support.REPOSITORY, "bench")
PROGRAMS = os.path.join(support.BUILD, "bin")


@pytest.fixture
def rows(monkeypatch, tmp_path):
    """A function that runs bench/bubbles with arguments and returns the rows of its results."""
    monkeypatch.setattr(sys, "path", [BENCH, *sys.path])
    loader = importlib.machinery.SourceFileLoader("bubbles", os.path.join(BENCH, "bubbles"))
    bubbles = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(bubbles)
    monkeypatch.setattr(bubbles, "BUILD", PROGRAMS)
    monkeypatch.setattr(bubbles, "SHOAL", os.path.join(PROGRAMS, "shoal"))

    def run(*arguments):
        results = tmp_path / "bubbles.json"
        monkeypatch.setattr(sys, "argv", ["bubbles", "--forward-ms", "4", "--backward-ms", "8", "--steps", "2", "--rounds", "1", "--json",
                                          str(results), *arguments])
        bubbles.main()
        return json.loads(results.read_text())["results"]

    return run


def check(row, sleeps_ms, messages_ms=0):
    """The step of the closed form, and two measured ones, which cannot be shorter than the sleeps. An emulated link lets a burst pass at once."""
    assert row["predicted_ms"] == pytest.approx(sleeps_ms + messages_ms)
    assert len(row["steps_ms"]["shoal"]) == 2 and min(row["steps_ms"]["shoal"]) > 0.99 * sleeps_ms


def test_steps_are_measured_beside_the_prediction(rows):
    found = rows("--pipelines", "eager_1f1b", "interleaved", "--ranks", "2", "--microbatches", "2")
    assert [row["pipeline"] for row in found] == ["eager_1f1b", "interleaved"]
    for row in found:
        check(row, sleeps_ms=(2 + 2 - 1) * 12)
        assert "torch" not in row["steps_ms"]


def test_steps_over_a_slow_link_are_measured_beside_the_prediction(rows):
    if complaint := support.cluster_complaint():
        pytest.skip(complaint)
    row, = rows("--pipelines", "simple", "--ranks", "2", "--microbatches", "2", "--transfers", "0.5")
    check(row, sleeps_ms=(2 + 2 - 1) * 12, messages_ms=2 * 2)  # one there and one back
    assert row["message_bytes"] == 238750  # in 2 ms, of 1 Gbit/s


def test_pipelines_of_torch_need_its_python(rows, capsys):
    with pytest.raises(SystemExit):
        rows("--pipelines", "1f1b")
    assert "--python" in capsys.readouterr().err


@pytest.mark.parametrize("rate", ("none", "1", "1.gbit", "fast"))
def test_transfers_need_a_rate(rows, rate):
    with pytest.raises(SystemExit, match=f"--rate {rate}: .*mbit"):
        rows("--transfers", "0.5", "--rate", rate)
