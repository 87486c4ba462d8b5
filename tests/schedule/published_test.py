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


cases.main()
