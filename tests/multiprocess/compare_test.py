"""bench/compare from its arguments to its files, with a fake shoal_perf that reports fixed figures."""
import json
import os
import re
import subprocess
import sys

import pytest

import support

COMPARE = os.path.join(support.REPOSITORY, "bench/compare")
# Rank 0 reports times of a size in float32 and of its half in the types of 2 bytes, which the targets compare.
FAKE_PERF = """#!{python}
import json, os, sys
if os.environ["SHOAL_RANK"] == "0":
    if os.path.exists("{folder}/fail"):
        sys.exit("shoal_perf: something failed")
    rows = []
    for type_, us in (("float32", 100.0), ("bfloat16", 55.0), ("float16", 70.0)):
        size = (2 << 20) if type_ == "float32" else 1 << 20
        print(f"{{size:13}}{{size // 4:13}} {{type_}} sum", flush=True)
        rows.append(dict(library="shoal", type=type_, bytes=size, latency_us=us, latency_us_p10=us, latency_us_p90=us, limit_fraction=None))
    with open(sys.argv[sys.argv.index("--json") + 1], "w") as file:
        json.dump(dict(machine=dict(cpu="some CPU", cores=2), command=" ".join(sys.argv), results=rows), file)
"""


@pytest.mark.usefixtures("emulated_hosts")
class TestCompare:
    @pytest.fixture(autouse=True)
    def new_folder(self, folder):
        self.folder = folder
        self.out = os.path.join(self.folder, "out")
        os.mkdir(os.path.join(self.folder, "bin"))
        program = os.path.join(self.folder, "bin/shoal_perf")
        with open(program, "w", encoding="utf-8") as file:
            file.write(FAKE_PERF.format(python=sys.executable, folder=self.folder))
        os.chmod(program, 0o755)

    def compare(self, *arguments):
        command = [COMPARE, "--build", self.folder, "--out", self.out, "--quick", "--only", "1x2-halves", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)

    def read(self, name):
        with open(os.path.join(self.out, name), encoding="utf-8") as file:
            return file.read()

    def test_compare_writes_results_verdicts_and_tables(self):
        done = self.compare()
        assert done.returncode == 0, done.stderr
        assert re.search(r"\[1/1\] 1 host x 2, .*\b15 s\b", done.stderr), done.stderr
        assert "| 1 of 2 |" in done.stdout, done.stdout
        assert re.search(r"(?m)^- 1 host x 2, .*: float16 .*\b0\.6 .*float32.*: 0\.70 at 1 MiB$", done.stdout), done.stdout
        assert "| 1 of 2 |" in self.read("summary.md")
        assert re.search(r"(?m)^- met: bfloat16 .*\b0\.6 .*float32 .*1 MiB to 64 MiB: 0\.55 at 1 MiB$", self.read("tables.md"))
        assert sorted(os.listdir(self.out)) == ["1x2-halves.json", "summary.md", "tables.md"]
        document = json.loads(self.read("1x2-halves.json"))
        assert document["command"].startswith("bench/cluster 1x2 --rate none"), document["command"]
        assert document["quick"]

    def test_a_failing_group_is_named(self):
        with open(os.path.join(self.folder, "fail"), "w", encoding="utf-8"):
            pass
        done = self.compare()
        assert done.returncode == 1
        assert "something failed" in done.stderr
        assert done.stderr.splitlines()[-1].endswith(": 1x2-halves"), done.stderr
        assert os.listdir(self.out) == []

    def test_bad_arguments_run_nothing(self):
        unknown = self.compare("--only", "9x9")
        assert unknown.returncode == 2
        assert re.search("--only 9x9: .*1x2 1x2-shared", unknown.stderr), unknown.stderr
        no_build = self.compare("--build", os.path.join(self.folder, "nowhere"))
        assert no_build.returncode == 1
        assert "nowhere/bin/shoal_perf: " in no_build.stderr
        self.out = os.path.join(self.folder, "bin/shoal_perf/out")
        assert "bench/compare: --out: " in self.compare().stderr
