"""bench/compare from its arguments to its files, with a stand-in for shoal_perf that knows the figures."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

import cases

COMPARE = os.path.join(cases.REPOSITORY, "bench/compare")
CLUSTER = os.path.join(cases.REPOSITORY, "bench/cluster")
# Ranks other than the first have nothing to say. A size and its half take the times that the targets speak of.
STAND_IN = """#!{python}
import json, os, sys
if os.environ["SHOAL_RANK"] == "0":
    if os.path.exists("{folder}/fail"):
        sys.exit("shoal_perf: this and that went wrong")
    rows = []
    for type_, us in (("float32", 100.0), ("bfloat16", 55.0), ("float16", 70.0)):
        size = (2 << 20) if type_ == "float32" else 1 << 20
        print(f"{{size:13}}{{size // 4:13}} {{type_}} sum", flush=True)
        rows.append(dict(library="shoal", type=type_, bytes=size, latency_us=us, latency_us_p10=us, latency_us_p90=us, limit_fraction=None))
    with open(sys.argv[sys.argv.index("--json") + 1], "w") as file:
        json.dump(dict(machine=dict(cpu="some CPU", cores=2), command=" ".join(sys.argv), results=rows), file)
"""


class Compare(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        check = subprocess.run([CLUSTER, "--check"], capture_output=True, text=True, check=False)
        if check.returncode != 0:
            raise unittest.SkipTest(f"no emulated hosts here: {check.stderr.strip()}")

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="shoal-compare-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.out = os.path.join(self.folder, "out")
        os.mkdir(os.path.join(self.folder, "bin"))
        program = os.path.join(self.folder, "bin/shoal_perf")
        with open(program, "w", encoding="utf-8") as file:
            file.write(STAND_IN.format(python=sys.executable, folder=self.folder))
        os.chmod(program, 0o755)

    def compare(self, *arguments):
        command = [COMPARE, "--build", self.folder, "--out", self.out, "--quick", "--only", "1x2-halves", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def read(self, name):
        with open(os.path.join(self.out, name), encoding="utf-8") as file:
            return file.read()

    def test_leaves_results_verdicts_and_tables(self):
        done = self.compare()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("[1/1] 1 host x 2, bfloat16 and float16; about 15 s left", done.stderr)
        self.assertIn("1 of 2 met; **0.70** at 1 MiB for float16 in at most 0.6 of the time of float32", done.stdout)
        self.assertIn("- met: bfloat16 in at most 0.6 of the time of float32 from 1 MiB to 64 MiB: 0.55 at 1 MiB", self.read("tables.md"))
        self.assertEqual(sorted(os.listdir(self.out)), ["1x2-halves.json", "summary.md", "tables.md"])
        document = json.loads(self.read("1x2-halves.json"))
        self.assertTrue(document["command"].startswith("bench/cluster 1x2 --rate none"), document["command"])
        self.assertTrue(document["quick"])

    def test_a_failing_group_is_an_error_that_says_what_failed(self):
        with open(os.path.join(self.folder, "fail"), "w", encoding="utf-8"):
            pass
        done = self.compare()
        self.assertEqual(done.returncode, 1)
        self.assertIn("this and that went wrong", done.stderr)
        self.assertIn("failed: 1x2-halves", done.stderr)
        self.assertEqual(os.listdir(self.out), [])

    def test_bad_arguments_run_nothing(self):
        unknown = self.compare("--only", "9x9")
        self.assertEqual(unknown.returncode, 2)
        self.assertIn("--only 9x9: there are 1x2 1x2-shared", unknown.stderr)
        no_build = self.compare("--build", os.path.join(self.folder, "nowhere"))
        self.assertEqual(no_build.returncode, 1)
        self.assertIn("nowhere/bin/shoal_perf: build the target shoal_perf", no_build.stderr)
        self.out = os.path.join(self.folder, "bin/shoal_perf/out")
        self.assertIn("bench/compare: --out: ", self.compare().stderr)


if __name__ == "__main__":
    cases.main()
