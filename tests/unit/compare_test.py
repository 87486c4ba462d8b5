"""bench/compare's arithmetic: ratios, verdicts, tables, remaining time; and that groups.json asks for what exists."""
import io
import json
import os
import sys
import tempfile
import unittest
from unittest import mock

import cases

sys.path.insert(0, os.path.join(cases.REPOSITORY, "bench"))
from comparison import readme, results, runs, tables, targets
from comparison.progress import Progress, minutes

KIB, MIB = 1 << 10, 1 << 20


def row(library, size, us, type_="float32", cpu=1.0, limit=None):
    return {"library": library, "type": type_, "bytes": size, "latency_us": us, "latency_us_p10": us * 0.9, "latency_us_p90": us * 1.1,
            "algorithm": "ring", "cpu_s_per_gb": cpu, "limit_fraction": limit}


def document(*rows):
    return {"machine": {"cpu": "some CPU", "cores": 2}, "command": "bench/cluster 1x2", "busy_share": 0.0, "results": list(rows)}


TWO_SIZES = document(row("shoal", 4, 2.0), row("openmpi", 4, 6.0), row("shoal", MIB, 10.0, cpu=0.5, limit=0.9), row("openmpi", MIB, 9.0, cpu=1.5))
GROUP = {"name": "1x2", "title": "1 host x 2", "peers": ["openmpi"], "targets": [
    {"figure": "ratio_least", "peer": "openmpi", "sizes": "", "at_least": 1.0, "noise": 0.05},
    {"figure": "ratio_least", "peer": "openmpi", "sizes": "..64", "at_least": 2.0},
    {"figure": "limit_least", "sizes": "64K..", "at_least": 0.92}]}


class Results(unittest.TestCase):
    def test_sizes(self):
        self.assertEqual([results.parse_size(text) for text in ("4", "64K", "2M", "1G")], [4, 65536, 2 * MIB, 1 << 30])
        self.assertEqual(results.parse_sizes("64K..4M"), (64 * KIB, 4 * MIB))
        self.assertEqual(results.within({4: "a", 64: "b", 65: "c"}, "..64"), {4: "a", 64: "b"})
        for bad in ("64k", "x", "-1"):
            self.assertRaises(ValueError, results.parse_size, bad)

    def test_cycles_of_a_size_become_the_one_of_median_time(self):
        cycles = document(row("shoal", 4, 9.0), row("shoal", 4, 1.0), row("shoal", 4, 2.0))
        self.assertEqual(results.rows(cycles, "shoal")[4]["latency_us"], 2.0)

    def test_ratios_need_both_libraries(self):
        self.assertEqual(results.ratios(document(row("shoal", 4, 2.0), row("shoal", 8, 2.0), row("gloo", 4, 30.0)), "gloo"), {4: 15.0})

    def test_geometric_mean(self):
        self.assertAlmostEqual(results.geometric_mean([1, 4]), 2)
        self.assertIsNone(results.geometric_mean([]))


class Targets(unittest.TestCase):
    def judge(self, target, of=TWO_SIZES):
        verdict = targets.judge(target, of)
        return verdict.value and round(verdict.value, 3), verdict.size, verdict.met

    def test_least_ratio_with_and_without_noise(self):
        target = {"figure": "ratio_least", "peer": "openmpi", "at_least": 1.0}
        self.assertEqual(self.judge(target), (0.9, MIB, False))
        self.assertEqual(self.judge(target | {"noise": 0.05}), (0.9, MIB, False))
        self.assertEqual(self.judge(target | {"noise": 0.1}), (0.9, MIB, True))
        self.assertEqual(self.judge(target | {"sizes": "..64"}), (3.0, 4, True))

    def test_means(self):
        self.assertEqual(self.judge({"figure": "ratio_mean", "peer": "openmpi", "at_least": 1.6}), (1.643, None, True))
        self.assertEqual(self.judge({"figure": "cpu_ratio_mean", "peer": "openmpi", "sizes": "64K..", "at_least": 1.0}), (3.0, None, True))

    def test_limit(self):
        self.assertEqual(self.judge({"figure": "limit_least", "at_least": 0.92}), (0.9, MIB, False))

    def test_halves_are_compared_with_as_many_float32(self):
        halves = document(row("shoal", 2 * MIB, 10.0), row("shoal", MIB, 6.0, "bfloat16"), row("shoal", 2 * MIB, 1.0, "bfloat16"))
        self.assertEqual(self.judge({"figure": "time_of_float32_greatest", "type": "bfloat16", "at_most": 0.6}, halves), (0.6, MIB, True))
        self.assertEqual(self.judge({"figure": "time_of_float32_greatest", "type": "bfloat16", "at_most": 0.5}, halves), (0.6, MIB, False))

    def test_what_was_not_measured_is_not_met(self):
        self.assertEqual(self.judge({"figure": "ratio_least", "peer": "gloo", "at_least": 1.0}), (None, None, False))

    def test_words(self):
        self.assertEqual(targets.words(GROUP["targets"][0]), "at least 1 x Open MPI at every size (5 % noise allowed)")
        self.assertEqual(targets.words(GROUP["targets"][1]), "at least 2 x Open MPI at every size up to 64 B")


class Groups(unittest.TestCase):
    def test_every_group_and_target_is_whole(self):
        keys = {"name", "title", "shape", "rate", "peers", "arguments", "quick", "seconds", "targets"}
        for group in runs.load_groups():
            self.assertEqual(set(group) - {"headline", "over", "environment"}, keys)
        for group in runs.load_groups("collectives"):
            self.assertEqual(set(group), keys | {"collective"})
            self.assertEqual(group["arguments"][:2], ["--collective", group["collective"]])
        groups = runs.load_groups() + runs.load_groups("collectives")
        self.assertEqual(len({group["name"] for group in groups}), len(groups))
        for group in groups:
            for target in group["targets"]:
                self.assertIn(target["figure"], targets.FIGURES)
                self.assertEqual(len({"at_least", "at_most"} & set(target)), 1, target)
                self.assertIn(target.get("peer"), [None, *group["peers"]])
                targets.words(target)

    def test_commands(self):
        group = next(group for group in runs.load_groups() if group["name"] == "4x1-1gbit")
        command = " ".join(runs.command_of(group, False, "shoal_perf", "x.json"))
        self.assertIn("bench/cluster 4x1 --rate 1gbit", command)
        self.assertIn("--mpi -- shoal_perf -b 4 -e 64M", command)
        self.assertIn("--peer openmpi,gloo --openmpi-algorithms all", command)
        group = next(group for group in runs.load_groups() if group["name"] == "1x2-ofi")
        command = " ".join(runs.command_of(group, False, "shoal_perf", "x.json"))
        self.assertTrue(command.startswith("env SHOAL_OFI_PROVIDER=tcp;ofi_rxm OMPI_MCA_mtl_ofi_provider_include=tcp;ofi_rxm /"), command)
        self.assertIn("--mpi --mpi-over ofi -- shoal_perf --transport ofi", command)

    def test_a_quick_run_is_quick(self):
        for name in ("groups", "collectives"):
            self.assertLess(sum(runs.expected_s(group, True) for group in runs.load_groups(name)), 5 * 60)


class Tables(unittest.TestCase):
    def test_the_summary_tells_what_is_lost(self):
        text = tables.summary([GROUP], {"1x2": TWO_SIZES})
        self.assertIn("| 1 host x 2 | Open MPI | 1.64 x | **0.90 x** | **0.90 x at 1 MiB** |  | 0.50, 1.50 | 1 of 3 met;", text)
        self.assertIn("**0.90** at 1 MiB for at least 1 x Open MPI at every size", text)

    def test_a_matrix_shows_every_collective_at_every_size(self):
        groups = [GROUP | {"name": name, "collective": name, "title": f"1 host x 2: {name}", "shape": "1x2"} for name in ("gather", "scatter")]
        text = tables.matrices(groups, {"gather": TWO_SIZES, "scatter": document(row("shoal", 4, 2.0), row("openmpi", 4, 3.0))})
        self.assertIn("1 host x 2, Open MPI's time over shoal's:", text)
        self.assertIn("| size | gather | scatter |\n|---|---|---|\n| 4 B | 3.00 x | 1.50 x |\n| 1 MiB | **0.90 x** |  |", text)

    def test_the_headline_shows_the_groups_that_ask_for_it(self):
        other = GROUP | {"name": "1x4"}
        text = tables.headline([GROUP | {"headline": "two ranks"}, other], {"1x2": TWO_SIZES, "1x4": TWO_SIZES})
        self.assertTrue(text.startswith("| size | two ranks |\n|---|---|\n| 4 B | 2.00, 3.00 x |\n"), text)
        self.assertTrue(text.endswith("| geometric mean from 64 KiB | **0.90 x** |"), text)

    def test_a_peer_that_did_not_run_is_shown_as_such(self):
        self.assertIn("**not measured**", tables.summary([GROUP | {"peers": ["gloo"]}], {"1x2": TWO_SIZES}))

    def test_details_have_every_size_and_verdict(self):
        text = tables.details([GROUP], {"1x2": TWO_SIZES | {"busy_share": 0.5, "stolen_share": 0.25}})
        self.assertIn("| 4 B | 2.00 | 1.80 .. 2.20 | ring |  | 6.00 (ring) | 3.00 x |", text)
        self.assertIn("| 9.00 (ring) | **0.90 x** |", text)
        self.assertIn("- met: at least 2 x Open MPI at every size up to 64 B: 3.00 at 4 B", text)
        self.assertIn("- **not met**: at least 0.92 of the links' limit from 64 KiB: 0.90 at 1 MiB", text)
        self.assertIn("Others used 50 % of the machine", text)
        self.assertIn("The machine's host took 25 % of its time", text)

    def test_the_readme_gets_the_table_between_its_marks(self):
        first, last = readme.marks("comparison")
        text = f"before\n{first}\nold\n{last}\nafter\n"
        once = readme.replaced(text, "comparison", "| new |")
        self.assertEqual(once, f"before\n{first}\n| new |\n{last}\nafter\n")
        self.assertEqual(readme.replaced(once, "comparison", "| new |"), once)
        self.assertRaises(ValueError, readme.replaced, "no marks", "comparison", "| new |")
        self.assertRaises(ValueError, readme.replaced, text, "training", "| new |")

    def test_the_readme_has_all_marks(self):
        with open(readme.README, encoding="utf-8") as file:
            text = file.read()
        for name in readme.WRITERS:
            readme.replaced(text, name, "")


class Disturbed(unittest.TestCase):
    def kept(self, *stolen):
        """What is left of a group whose runs lose these shares, one after the other."""
        shares = iter(stolen)
        with tempfile.TemporaryDirectory() as folder, \
                mock.patch.object(runs, "measure_once", lambda *_: TWO_SIZES | {"stolen_share": next(shares)}):
            runs.measure(GROUP, False, "shoal_perf", folder, print)
            with open(os.path.join(folder, "1x2.json"), encoding="utf-8") as file:
                left = json.load(file)
        return left["stolen_share"], left["tries"]

    def test_what_the_host_disturbed_is_measured_again(self):
        self.assertEqual(self.kept(0.02), (0.02, 1))
        self.assertEqual(self.kept(0.3, 0.0), (0.0, 2))
        self.assertEqual(self.kept(0.3, 0.1, 0.2, 0.0), (0.1, 3), "the least of three")

    def test_a_try_that_fails_leaves_the_one_before(self):
        tries = mock.Mock(side_effect=[TWO_SIZES | {"stolen_share": 0.3}, runs.GroupFailed("it hangs")])
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(runs, "measure_once", tries):
            with self.assertRaises(runs.GroupFailed):
                runs.measure(GROUP, False, "shoal_perf", folder, print)
            with open(os.path.join(folder, "1x2.json"), encoding="utf-8") as file:
                self.assertEqual(json.load(file)["stolen_share"], 0.3)


class Remaining(unittest.TestCase):
    def test_the_pace_so_far_applies_to_the_rest(self):
        now = [0.0]
        progress = Progress([10, 20, 30], stream=io.StringIO(), clock=lambda: now[0])
        progress.start("one")
        self.assertEqual(progress.remaining_s(), 60)
        now[0] = 20.0  # twice as long as expected
        progress.start("two")
        self.assertEqual(progress.remaining_s(), 100)
        now[0] = 30.0
        self.assertEqual(progress.remaining_s(), 90)

    def test_words(self):
        self.assertEqual([minutes(seconds) for seconds in (0, 59.6, 90, 600)], ["0 s", "60 s", "2 min", "10 min"])


if __name__ == "__main__":
    cases.main()
