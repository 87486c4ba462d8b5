"""The table of predictions beside published results is what `shoal simulate --published` prints."""
import os
import re
import subprocess
import unittest

import cases

SHOAL = os.path.join(cases.BUILD, "bin/shoal")
TABLE = os.path.join(cases.REPOSITORY, "bench/results/predicted-aws.md")


def rows(text):
    return [line for line in text.splitlines() if line.startswith("| ")]


class Published(unittest.TestCase):
    def test_the_document_holds_what_the_command_prints(self):
        done = subprocess.run([SHOAL, "simulate", "--published"], capture_output=True, text=True, timeout=240, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(TABLE, encoding="utf-8") as file:
            text = file.read()
        self.assertGreater(len(rows(done.stdout)), 10)
        self.assertEqual(rows(text), rows(done.stdout), "write it anew: shoal simulate --published")
        self.assertRegex(text, r"(?m)^\*\*Predicted, not measured\.\*\*")

    def test_explain_shows_the_same_call(self):
        done = subprocess.run([SHOAL, "explain", "all_reduce", "1MiB", "--platform", "p5.48xlarge", "--nodes", "2"], capture_output=True, text=True,
                              timeout=240, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("times in us"), 1)  # nothing twice, though SimGrid runs in children of this process
        plan = re.search(r"^-> (\S+)", done.stdout, re.MULTILINE)[1]
        with open(TABLE, encoding="utf-8") as file:
            row = next(line for line in file if line.startswith("| 2 x p5.48xlarge | 1 MiB"))
        self.assertIn(plan, row)
        self.assertIn("published for NCCL: 123.3 us, 15.95 GB/s", done.stdout)

    def check_published(self, expected, size, *platform):
        """`expected`: what explain says is published, line by line, without the sources."""
        done = subprocess.run([SHOAL, "explain", "all_reduce", size, "--platform", *platform], capture_output=True, text=True, timeout=240,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(re.findall(r"^published for NCCL(.*) \(\w", done.stdout, re.MULTILINE), expected)

    def test_explain_shows_the_nearest_where_there_is_none_of_that_call(self):
        self.check_published([" on 2 nodes: 602.1 us, 209 GB/s"], "64MiB", "p5.48xlarge", "--nodes", "16")
        self.check_published([" on 2 nodes of 64 MiB: 602.1 us, 209 GB/s", " on 2 nodes of 256 MiB: 1467.4 us, 343 GB/s"], "100MiB", "p5.48xlarge",
                             "--nodes", "16")
        self.check_published([" on 4 nodes of 1 GiB: 70253.0 us, 29.61 GB/s"], "1MiB", "p4d.24xlarge", "--nodes", "8")
        self.check_published([" of 8 B: 69.0 us", " of 1 MiB: 123.3 us, 15.95 GB/s"], "1KiB", "p5.48xlarge", "--nodes", "2")
        self.check_published([" on 2 nodes with 8 ranks a node: 602.1 us, 209 GB/s"], "64MiB", "p5.48xlarge", "--nodes", "4", "--ranks-per-node", "4")
        self.check_published([], "64MiB", "p5en.48xlarge", "--nodes", "2")


cases.main()
