"""shoal tune: the table that it writes, its progress, its budget; shoal explain and other jobs use the table."""
import json
import os
import re
import shutil
import subprocess

import pytest

import support

SHOAL = os.path.join(support.BUILD, "bin/shoal")
QUICK = ("--max-size", "256", "--budget", "180")


def shoal(*arguments, timeout=240, **environment):
    return subprocess.run([SHOAL, *arguments], capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
                          env=os.environ | environment, check=False)


class TestTune:
    @pytest.fixture(autouse=True)
    def new_folder(self, folder):
        self.path = os.path.join(folder, "table.json")

    def tune(self, ranks, *arguments, **environment):
        return shoal("run", "-n", str(ranks), "--", SHOAL, "tune", "-o", self.path, *arguments, **environment)

    def table(self):
        with open(self.path, encoding="utf-8") as file:
            return json.load(file)

    def test_the_table_has_measurements_and_their_machine(self):
        done = self.tune(3, *QUICK)
        assert done.returncode == 0, done.stderr
        table = self.table()
        assert table["format"] == 1
        assert re.search(r"^\d+\.\d+\.\d+$", table["shoal"]), table["shoal"]
        [shape] = table["shapes"]
        assert (shape["shape"], shape["ranks"], shape["node_of_rank"], shape["transports"]) == ("1x3", 3, [0, 0, 0], "shm")
        assert shape["machine"]["kernel"].split()[1] == os.uname().release
        assert shape["costs"]["in_a_node"]["gbyte_s"] > 0
        sizes = {}
        for entry in shape["entries"]:
            sizes.setdefault(entry["collective"], {}).setdefault(entry["bytes"], set()).add(entry["algorithm"])
            assert entry["latency_us"] > 0
            assert entry["latency_us_p10"] <= entry["latency_us"]
            assert entry["latency_us_p90"] >= entry["latency_us"]
            assert entry["samples"] >= 5
        powers = [4 ** k for k in range(1, 5)]
        assert {name: sorted(found) for name, found in sizes.items()} == {"all_reduce": powers, "broadcast": powers,
                                                                          "all_gather": [size for size in powers if 3 * size <= 256]}
        assert len(sizes["all_reduce"][256]) > 1
        # Progress: rank 0 prints a headline, a line for each size, and two about the file.
        lines = done.stderr.splitlines()
        assert len(lines) == 1 + len(powers) * 2 + len(sizes["all_gather"]) + 2
        assert re.search(r"\b3 ranks .*\b1x3 .*\bshm\b", lines[0]), lines[0]
        assert re.search(r"^\[ 1/11\] all_reduce +4 bytes  \S+ [\d.]+ us, ", lines[1]), lines[1]
        assert f"SHOAL_TUNING={self.path}" in lines[-1]
        assert done.stdout == ""

        explained = shoal("explain", "all_reduce", "128", "--shape", "1x3", SHOAL_TUNING=self.path)
        assert re.search(rf"{self.path}: .*\b1x3 .*\bshm\b.* all_reduce .*\b4 bytes .*\b256 bytes", explained.stdout), explained.stdout
        assert "(by table)" in explained.stdout
        outside = shoal("explain", "all_reduce", "1MiB", "--shape", "1x3", "--tuning", self.path)
        assert "(by model)" in outside.stdout
        elsewhere = shoal("explain", "all_reduce", "128", "--shape", "1x2", "--tuning", self.path)
        assert re.search(rf"{self.path}: .*\b1x2 .*\b1x3 ", elsewhere.stdout), elsewhere.stdout
        assert "(by model)" in elsewhere.stdout

    def test_a_run_replaces_only_its_own_shape_in_the_file(self):
        small = ("--max-size", "16", "-c", "all_reduce")
        assert self.tune(2, *small).returncode == 0
        assert self.tune(3, *small).returncode == 0
        done = self.tune(2, "--max-size", "16", "--factor", "2", "-c", "all_reduce", SHOAL_TUNING="/no/such/file")
        assert done.returncode == 0, done.stderr
        shapes = {shape["shape"]: sorted({entry["bytes"] for entry in shape["entries"]}) for shape in self.table()["shapes"]}
        assert shapes == {"1x2": [4, 8, 16], "1x3": [4, 16]}
        # Another transport makes another shape.
        done = self.tune(2, *small, SHOAL_TRANSPORTS="tcp")
        assert done.returncode == 0, done.stderr
        assert [shape["transports"] for shape in self.table()["shapes"]] == ["shm", "shm", "tcp"]

    def test_a_tiny_budget_writes_no_file(self):
        done = self.tune(2, "--budget", "0.000001")
        assert done.returncode == 1
        assert "--budget" in done.stderr
        assert not os.path.exists(self.path)

    def test_the_budget_skips_sizes_that_take_too_long(self):
        # By the model the last size takes far longer than the budget. Which sizes before it are skipped depends on the machine.
        done = self.tune(2, "-c", "all_reduce", "--max-size", "256MiB", "--budget", "1.5")
        assert done.returncode == 0, done.stderr
        assert re.search(r"all_reduce +256 MiB +skipped\b", done.stderr), done.stderr
        assert 256 << 20 not in {entry["bytes"] for entry in self.table()["shapes"][0]["entries"]}

    @pytest.mark.parametrize("arguments, expected", (
        ("--min-size 5", r"--min-size 5\b.*\b4 bytes"), ("--min-size 64 --max-size 16", r"--max-size 16\b.*--min-size 64\b"),
        ("-c barrier", r"\bbarrier\b"), ("-c frob", "'frob'"), ("-c broadcast,broadcast", r"\bbroadcast\b"),
        ("--max-size 1T", r"--max-size 1T\b.*\b16 GiB")))
    def test_bad_values_are_refused_by_one_rank(self, arguments, expected):
        done = self.tune(2, *arguments.split())
        assert done.returncode == 1
        assert len(re.findall(f"(?m)^shoal tune: .*{expected}", done.stderr)) == 1, done.stderr

    @pytest.mark.parametrize("arguments", ("--factor 3", "--budget -1", "--budget x"))
    def test_bad_numbers_are_refused(self, arguments):
        assert shoal("tune", *arguments.split()).returncode == 2

    def test_one_rank_is_refused_with_an_example(self):
        done = shoal("tune", "-o", self.path)
        assert done.returncode == 1
        assert "shoal run -n 4 -- shoal tune" in done.stderr

    @pytest.mark.parametrize("path, reason", ((".", "Is a directory"), ("/no/such/folder/table.json", "No such file or directory")))
    def test_an_unwritable_file_fails_before_measuring(self, path, reason):
        self.path = os.path.normpath(os.path.join(os.path.dirname(self.path), path))
        done = self.tune(2)
        assert done.returncode == 1
        assert f"{self.path}: {reason}" in done.stderr
        assert "[ 1/" not in done.stderr

    def test_a_file_of_another_kind_is_not_overwritten(self):
        with open(self.path, "w", encoding="utf-8") as file:
            file.write("my thesis")
        done = self.tune(2, *QUICK)
        assert done.returncode == 1
        assert re.search(rf"{self.path}\b.*JSON", done.stderr), done.stderr
        with open(self.path, encoding="utf-8") as file:
            assert file.read() == "my thesis"

    def test_tune_runs_under_mpirun(self):
        if shutil.which("mpirun") is None:
            pytest.skip("mpirun is not installed")
        no_leaks = {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"}  # libpmix leaks
        done = subprocess.run(["mpirun", "--oversubscribe", "--allow-run-as-root", "-n", "2", SHOAL, "tune", "-o", self.path, "--max-size", "64"],
                              env={**os.environ, **no_leaks}, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL, check=False)
        assert done.returncode == 0, done.stderr
        assert self.table()["shapes"][0]["shape"] == "1x2"

    def test_its_calls_appear_in_the_explain_report(self):
        done = self.tune(2, "--max-size", "16", "-c", "all_reduce", SHOAL_EXPLAIN="1")
        assert done.returncode == 0, done.stderr
        assert len(re.findall(r"shoal explain: 2 ranks .*\b1x2 .*\bshm\b", done.stderr)) == 1, done.stderr
        assert re.search(r"all_reduce +16 bytes +one_shot +\d+ ", done.stderr), done.stderr
