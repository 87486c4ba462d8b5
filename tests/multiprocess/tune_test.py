"""shoal tune: the table that it writes, its progress, its budget, and that shoal explain and other jobs go by it."""
import json
import os
import shutil
import subprocess
import tempfile
import unittest

import cases

SHOAL = os.path.join(cases.BUILD, "bin/shoal")
QUICK = ("--max-size", "16KiB", "--budget", "60")


def shoal(*arguments, timeout=120, **environment):
    return subprocess.run([SHOAL, *arguments], capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
                          env=os.environ | environment, check=False)


class Tune(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "table.json")

    def tune(self, ranks, *arguments, **environment):
        return shoal("run", "-n", str(ranks), "--", SHOAL, "tune", "-o", self.path, *arguments, **environment)

    def table(self):
        with open(self.path, encoding="utf-8") as file:
            return json.load(file)

    def test_the_table_says_what_was_measured_where(self):
        done = self.tune(3, *QUICK)
        self.assertEqual(done.returncode, 0, done.stderr)
        table = self.table()
        self.assertEqual(table["format"], 1)
        self.assertRegex(table["shoal"], r"^\d+\.\d+\.\d+$")
        [shape] = table["shapes"]
        self.assertEqual((shape["shape"], shape["ranks"], shape["node_of_rank"], shape["transports"]), ("1x3", 3, [0, 0, 0], "shm"))
        self.assertEqual(shape["machine"]["kernel"].split()[1], os.uname().release)
        self.assertGreater(shape["costs"]["in_a_node"]["gbyte_s"], 0)
        sizes = {}
        for entry in shape["entries"]:
            sizes.setdefault(entry["collective"], {}).setdefault(entry["bytes"], set()).add(entry["algorithm"])
            self.assertGreater(entry["latency_us"], 0)
            self.assertLessEqual(entry["latency_us_p10"], entry["latency_us"])
            self.assertGreaterEqual(entry["latency_us_p90"], entry["latency_us"])
            self.assertGreaterEqual(entry["samples"], 5)
        powers = [4 ** k for k in range(1, 8)]
        self.assertEqual({name: sorted(found) for name, found in sizes.items()},
                         {"all_reduce": powers, "broadcast": powers, "all_gather": [size for size in powers if 3 * size <= 16384]})
        self.assertGreater(len(sizes["all_reduce"][16384]), 1)
        # Progress: one line for each size, by rank 0 alone, between a headline and the way to use the file.
        lines = done.stderr.splitlines()
        self.assertEqual(len(lines), 1 + len(powers) * 2 + len(sizes["all_gather"]) + 2)
        self.assertIn("3 ranks on 1x3 over shm", lines[0])
        self.assertRegex(lines[1], r"^\[ 1/20\] all_reduce +4 bytes  \S+ [\d.]+ us, .* left\)$")
        self.assertIn(f"SHOAL_TUNING={self.path}", lines[-1])
        self.assertEqual(done.stdout, "")

        explained = shoal("explain", "all_reduce", "8KiB", "--shape", "1x3", SHOAL_TUNING=self.path)
        self.assertIn("1x3 over shm, all_reduce of 4 bytes to 16 KiB", explained.stdout)
        self.assertRegex(explained.stdout, r"was measured to take|about equal|only one that was measured")
        self.assertIn("(by table)", explained.stdout)
        outside = shoal("explain", "all_reduce", "1MiB", "--shape", "1x3", "--tuning", self.path)
        self.assertIn("(by model)", outside.stdout)
        elsewhere = shoal("explain", "all_reduce", "8KiB", "--shape", "1x2", "--tuning", self.path)
        self.assertIn("nothing of 1x2 over shm; it has 1x3 over shm", elsewhere.stdout)
        self.assertIn("(by model)", elsewhere.stdout)

    def test_a_file_collects_shapes_and_replaces_its_own(self):
        small = ("--max-size", "64", "-c", "all_reduce")
        self.assertEqual(self.tune(2, *small).returncode, 0)
        self.assertEqual(self.tune(3, *small).returncode, 0)
        done = self.tune(2, "--max-size", "16", "--factor", "2", "-c", "all_reduce", SHOAL_TUNING="/no/such/file")
        self.assertEqual(done.returncode, 0, done.stderr)
        shapes = {shape["shape"]: sorted({entry["bytes"] for entry in shape["entries"]}) for shape in self.table()["shapes"]}
        self.assertEqual(shapes, {"1x2": [4, 8, 16], "1x3": [4, 16, 64]})
        # By another transport the same ranks are another shape; and a job goes by its own, as its report shows.
        done = self.tune(2, *small, SHOAL_TRANSPORTS="tcp")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([shape["transports"] for shape in self.table()["shapes"]], ["shm", "shm", "tcp"])

    def test_without_time_it_writes_nothing(self):
        done = self.tune(2, "--budget", "0.000001")
        self.assertEqual(done.returncode, 1)
        self.assertIn("too few to measure anything", done.stderr)
        self.assertFalse(os.path.exists(self.path))

    def test_the_budget_ends_it_between_sizes(self):
        # The model puts these sizes far above what is left; which ones are skipped is the machine's affair.
        done = self.tune(2, "-c", "all_reduce", "--max-size", "64MiB", "--budget", "0.3")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("all_reduce     64 MiB  skipped: no time left", done.stderr)
        self.assertNotIn(64 << 20, {entry["bytes"] for entry in self.table()["shapes"][0]["entries"]})

    def test_what_makes_no_sense_is_refused_once_and_at_once(self):
        for arguments, words in ((["--min-size", "5"], "multiple of 4"), (["--min-size", "64", "--max-size", "16"], "less than --min-size"),
                                 (["-c", "barrier"], "barrier is not tuned"), (["-c", "frob"], "unknown collective 'frob'"),
                                 (["-c", "broadcast,broadcast"], "twice"), (["--max-size", "1T"], "16 GiB")):
            with self.subTest(arguments=arguments):
                done = self.tune(2, *arguments)
                self.assertEqual(done.returncode, 1)
                self.assertEqual(done.stderr.count(words), 1, done.stderr)
        for arguments in (["--factor", "3"], ["--budget", "-1"], ["--budget", "x"]):
            self.assertEqual(shoal("tune", *arguments).returncode, 2)

    def test_one_rank_is_told_how_to_start_more(self):
        done = shoal("tune", "-o", self.path)
        self.assertEqual(done.returncode, 1)
        self.assertIn("shoal run -n 4 -- shoal tune", done.stderr)

    def test_a_file_that_cannot_be_written_ends_it_before_the_work(self):
        for path, words in ((os.path.dirname(self.path), "Is a directory"), ("/no/such/folder/table.json", "No such file or directory")):
            self.path = path
            done = self.tune(2)
            self.assertEqual(done.returncode, 1)
            self.assertIn(words, done.stderr)
            self.assertNotIn("[ 1/", done.stderr)

    def test_a_file_that_is_no_table_is_not_overwritten(self):
        with open(self.path, "w", encoding="utf-8") as file:
            file.write("my thesis")
        done = self.tune(2, *QUICK)
        self.assertEqual(done.returncode, 1)
        self.assertIn("is not JSON", done.stderr)
        with open(self.path, encoding="utf-8") as file:
            self.assertEqual(file.read(), "my thesis")

    def test_it_runs_under_mpirun(self):
        if shutil.which("mpirun") is None:
            self.skipTest("mpirun is not installed")
        no_leaks = {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"}  # libpmix has some, its users do not
        done = subprocess.run(["mpirun", "--oversubscribe", "--allow-run-as-root", "-n", "2", SHOAL, "tune", "-o", self.path, "--max-size", "64"],
                              env={**os.environ, **no_leaks}, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.table()["shapes"][0]["shape"], "1x2")

    def test_its_own_calls_appear_in_the_report(self):
        done = self.tune(2, "--max-size", "16", "-c", "all_reduce", SHOAL_EXPLAIN="1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("shoal explain: 2 ranks on 1x2 over shm"), 1)
        self.assertRegex(done.stderr, r"all_reduce +16 bytes +one_shot +\d+ .* the call\n")


cases.main()
