"""The committed table of predictions beside published results is the output of `shoal simulate --published`."""
import os
import re
import subprocess

import pytest

import support

SHOAL = os.path.join(support.BUILD, "bin/shoal")
TABLE = os.path.join(support.REPOSITORY, "bench/results/predicted-aws.md")


def run(*arguments):
    done = subprocess.run([SHOAL, *arguments], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def published(text):
    """The quantities in each line of shoal explain about a published result, without its source."""
    lines = re.findall(r"^published .*NCCL(.*) \(\w", text, re.MULTILINE)
    return [re.findall(r"[\d.]+ (?:nodes|ranks|B|[KMG]iB|us|GB/s)", line) for line in lines]


def rows(text):
    return [line for line in text.splitlines() if line.startswith("| ")]


class TestPublished:
    @pytest.mark.long
    def test_the_document_has_the_table_of_the_command(self):
        printed = rows(run("simulate", "--published"))
        with open(TABLE, encoding="utf-8") as file:
            text = file.read()
        assert len(printed) > 10
        assert rows(text) == printed, "update the table: shoal simulate --published"
        assert re.search(r"(?m)^\*\*Predicted\b", text), text

    def test_explain_shows_the_same_call(self):
        text = run("explain", "all_reduce", "1MiB", "--platform", "p5.48xlarge", "--nodes", "2")
        assert text.count("times in us") == 1  # SimGrid runs in child processes, which must not print buffered output again
        plan = re.search(r"^-> (\S+)", text, re.MULTILINE)[1]
        with open(TABLE, encoding="utf-8") as file:
            row = next(line for line in file if line.startswith("| 2 x p5.48xlarge | 1 MiB"))
        assert plan in row
        assert published(text) == [["123.3 us", "15.95 GB/s"]]

    @pytest.mark.parametrize("call, expected", (
        ("64MiB --platform p5.48xlarge --nodes 16", [["2 nodes", "602.1 us", "209 GB/s"]]),
        ("100MiB --platform p5.48xlarge --nodes 16", [["2 nodes", "64 MiB", "602.1 us", "209 GB/s"],
                                                      ["2 nodes", "256 MiB", "1467.4 us", "343 GB/s"]]),
        ("1MiB --platform p4d.24xlarge --nodes 8", [["4 nodes", "1 GiB", "70253.0 us", "29.61 GB/s"]]),
        ("1KiB --platform p5.48xlarge --nodes 2", [["8 B", "69.0 us"], ["1 MiB", "123.3 us", "15.95 GB/s"]]),
        ("64MiB --platform p5.48xlarge --nodes 4 --ranks-per-node 4", [["2 nodes", "8 ranks", "602.1 us", "209 GB/s"]]),
        ("64MiB --platform p5en.48xlarge --nodes 2", [])), ids=lambda value: value if isinstance(value, str) else "")
    def test_explain_shows_the_nearest_published_calls(self, call, expected):
        assert published(run("explain", "all_reduce", *call.split())) == expected
