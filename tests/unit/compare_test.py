"""The arithmetic of bench/compare: ratios, verdicts, tables, remaining time; and every group of groups.json is complete."""
import io
import json
import os
import re
import sys
from unittest import mock

import pytest

import support

sys.path.insert(0, os.path.join(support.REPOSITORY, "bench"))
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


class TestResults:
    def test_sizes(self):
        assert [results.parse_size(text) for text in ("4", "64K", "2M", "1G")] == [4, 65536, 2 * MIB, 1 << 30]
        assert results.parse_sizes("64K..4M") == (64 * KIB, 4 * MIB)
        assert results.within({4: "a", 64: "b", 65: "c"}, "..64") == {4: "a", 64: "b"}

    @pytest.mark.parametrize("bad", ("64k", "x", "-1"))
    def test_bad_sizes(self, bad):
        with pytest.raises(ValueError):
            results.parse_size(bad)

    def test_the_cycle_of_median_time_counts(self):
        cycles = document(row("shoal", 4, 9.0), row("shoal", 4, 1.0), row("shoal", 4, 2.0))
        assert results.rows(cycles, "shoal")[4]["latency_us"] == 2.0

    def test_ratios_need_both_libraries(self):
        assert results.ratios(document(row("shoal", 4, 2.0), row("shoal", 8, 2.0), row("gloo", 4, 30.0)), "gloo") == {4: 15.0}

    def test_geometric_mean(self):
        assert results.geometric_mean([1, 4]) == pytest.approx(2, abs=1e-7)
        assert results.geometric_mean([]) is None


class TestTargets:
    def judge(self, target, of=TWO_SIZES):
        verdict = targets.judge(target, of)
        return verdict.value and round(verdict.value, 3), verdict.size, verdict.met

    def test_least_ratio_with_and_without_noise(self):
        target = {"figure": "ratio_least", "peer": "openmpi", "at_least": 1.0}
        assert self.judge(target) == (0.9, MIB, False)
        assert self.judge(target | {"noise": 0.05}) == (0.9, MIB, False)
        assert self.judge(target | {"noise": 0.1}) == (0.9, MIB, True)
        assert self.judge(target | {"sizes": "..64"}) == (3.0, 4, True)

    def test_means(self):
        assert self.judge({"figure": "ratio_mean", "peer": "openmpi", "at_least": 1.6}) == (1.643, None, True)
        assert self.judge({"figure": "cpu_ratio_mean", "peer": "openmpi", "sizes": "64K..", "at_least": 1.0}) == (3.0, None, True)

    def test_limit(self):
        assert self.judge({"figure": "limit_least", "at_least": 0.92}) == (0.9, MIB, False)

    def test_halves_are_compared_with_as_many_float32(self):
        halves = document(row("shoal", 2 * MIB, 10.0), row("shoal", MIB, 6.0, "bfloat16"), row("shoal", 2 * MIB, 1.0, "bfloat16"))
        assert self.judge({"figure": "time_of_float32_greatest", "type": "bfloat16", "at_most": 0.6}, halves) == (0.6, MIB, True)
        assert self.judge({"figure": "time_of_float32_greatest", "type": "bfloat16", "at_most": 0.5}, halves) == (0.6, MIB, False)

    def test_a_peer_without_results_is_not_met(self):
        assert self.judge({"figure": "ratio_least", "peer": "gloo", "at_least": 1.0}) == (None, None, False)

    def test_words(self):
        assert re.search(r"least 1 x Open MPI.*\b5 %", targets.words(GROUP["targets"][0]))
        assert re.search(r"least 2 x Open MPI.*\b64 B", targets.words(GROUP["targets"][1]))


class TestGroups:
    def test_every_group_and_target_is_complete(self):
        keys = {"name", "title", "shape", "rate", "peers", "arguments", "quick", "seconds", "targets"}
        for group in runs.load_groups():
            assert set(group) - {"headline", "over", "environment"} == keys
        for group in runs.load_groups("collectives"):
            assert set(group) == keys | {"collective"}
            assert group["arguments"][:2] == ["--collective", group["collective"]]
        groups = runs.load_groups() + runs.load_groups("collectives")
        assert len({group["name"] for group in groups}) == len(groups)
        for group in groups:
            for target in group["targets"]:
                assert target["figure"] in targets.FIGURES
                assert len({"at_least", "at_most"} & set(target)) == 1, target
                assert target.get("peer") in [None, *group["peers"]]
                targets.words(target)

    def test_commands(self):
        group = next(group for group in runs.load_groups() if group["name"] == "4x1-1gbit")
        command = " ".join(runs.command_of(group, False, "shoal_perf", "x.json"))
        assert "bench/cluster 4x1 --rate 1gbit" in command
        assert "--mpi -- shoal_perf -b 4 -e 64M" in command
        assert "--peer openmpi,gloo --openmpi-algorithms all" in command
        group = next(group for group in runs.load_groups() if group["name"] == "1x2-ofi")
        command = " ".join(runs.command_of(group, False, "shoal_perf", "x.json"))
        assert command.startswith("env SHOAL_OFI_PROVIDER=tcp;ofi_rxm OMPI_MCA_mtl_ofi_provider_include=tcp;ofi_rxm /"), command
        assert "--mpi --mpi-over ofi -- shoal_perf --transport ofi" in command

    @pytest.mark.parametrize("name", ("groups", "collectives"))
    def test_a_quick_run_takes_5_minutes(self, name):
        assert sum(runs.expected_s(group, True) for group in runs.load_groups(name)) < 5 * 60


class TestTables:
    def test_the_summary_names_missed_targets(self):
        text = tables.summary([GROUP], {"1x2": TWO_SIZES})
        assert "| 1 host x 2 | Open MPI | 1.64 x | **0.90 x** | **0.90 x at 1 MiB** |  | 0.50, 1.50 | 1 of 3 |" in text
        assert re.search(r"(?m)^- 1 host x 2: .*\b1 x Open MPI.*: 0\.90 at 1 MiB$", text), text
        assert len(re.findall(r"(?m)^- 1 host x 2: ", text)) == 2, text

    def test_a_summary_page_has_the_headline_only_of_groups_that_name_one(self):
        plain = tables.summary_page([GROUP], {"1x2": TWO_SIZES})
        assert plain.startswith("# AllReduce ")
        assert "| size |" not in plain
        assert "| size | two ranks |" in tables.summary_page([GROUP | {"headline": "two ranks"}], {"1x2": TWO_SIZES})
        gather = GROUP | {"name": "gather", "collective": "gather", "title": "1 host x 2: gather", "shape": "1x2"}
        assert "| size | gather |" in tables.summary_page([gather], {"gather": TWO_SIZES})

    def test_commands_are_wrapped(self):
        block = tables.command_block("bench/cluster " + "--option value " * 20)
        assert max(map(len, block.splitlines())) <= 120
        assert " ".join(block.replace("\\\n", " ").split()) == "bench/cluster " + " ".join(["--option value"] * 20)

    def test_a_matrix_has_every_collective_and_size(self):
        groups = [GROUP | {"name": name, "collective": name, "title": f"1 host x 2: {name}", "shape": "1x2"} for name in ("gather", "scatter")]
        text = tables.matrices(groups, {"gather": TWO_SIZES, "scatter": document(row("shoal", 4, 2.0), row("openmpi", 4, 3.0))})
        assert text.startswith("1 host x 2, Open MPI"), text
        assert "| size | gather | scatter |\n|---|---|---|\n| 4 B | 3.00 x | 1.50 x |\n| 1 MiB | **0.90 x** |  |" in text

    def test_the_headline_has_the_groups_that_name_one(self):
        other = GROUP | {"name": "1x4"}
        text = tables.headline([GROUP | {"headline": "two ranks"}, other], {"1x2": TWO_SIZES, "1x4": TWO_SIZES})
        assert text.startswith("| size | two ranks |\n|---|---|\n| 4 B | 2.00, 3.00 x |\n"), text
        assert text.endswith("| geometric mean from 64 KiB | **0.90 x** |"), text

    def test_the_summary_names_a_peer_without_results(self):
        assert "**not measured**" in tables.summary([GROUP | {"peers": ["gloo"]}], {"1x2": TWO_SIZES})

    def test_details_have_every_size_and_verdict(self):
        text = tables.details([GROUP], {"1x2": TWO_SIZES | {"busy_share": 0.5, "stolen_share": 0.25}})
        assert "| 4 B | 2.00 | 1.80 .. 2.20 | ring |  | 6.00 (ring) | 3.00 x |" in text
        assert "| 9.00 (ring) | **0.90 x** |" in text
        assert re.search(r"^- met: .*\b2 x Open MPI .*\b64 B: 3\.00 at 4 B$", text, re.MULTILINE), text
        assert re.search(r"^- \*\*not met\*\*: .*\b0\.92 .*\b64 KiB: 0\.90 at 1 MiB$", text, re.MULTILINE), text
        assert "50 %" in text  # busy_share
        assert "25 %" in text  # stolen_share

    def test_a_table_is_written_between_its_marks(self):
        first, last = readme.MARKS
        text = f"before\n{first}\nold\n{last}\nafter\n"
        once = readme.replaced(text, "| new |")
        assert once == f"before\n{first}\n| new |\n{last}\nafter\n"
        assert readme.replaced(once, "| new |") == once
        for wrong in ("no marks", f"{first}\n", f"{last}\n{first}\n"):
            with pytest.raises(ValueError):
                readme.replaced(wrong, "| new |")

    def test_the_readme_has_the_marks(self):
        with open(readme.README, encoding="utf-8") as file:
            readme.replaced(file.read(), "")

    def test_the_readme_table_has_losing_rows_and_at_most_12(self):
        training = {"results": [{"backend": name, "images_per_s": speed} for name, speed in (("shoal", 60.0), ("gloo", 40.0), ("mpi", 80.0))]}
        text = readme.table([GROUP], {"1x2": TWO_SIZES}, {"1gbit-2x1-batch8-vgg16": training})
        assert "| AllReduce, 1 host x 2 | **0.90 x** |  | **0.90 x at 1 MiB** (Open MPI) |" in text
        assert "| Training, 2 and 4 hosts, 1 Gbit/s, batch 8 | **0.75 x** | 1.50 x | **0.75 x** (vgg16, 2 hosts) |" in text
        assert len(text.splitlines()) == 4, "nothing of what was not measured"
        assert len(readme.GROUPS) + len(readme.PARTS) <= 12
        assert set(readme.GROUPS) <= {group["name"] for group in runs.load_groups()}


class TestDisturbed:
    """Runs during which the host of the virtual machine took a share of its time."""

    @pytest.mark.parametrize("stolen, kept", (([0.02], (0.02, 1)), ([0.3, 0.0], (0.0, 2)),
                                              ([0.3, 0.1, 0.2, 0.0], (0.1, 3))),  # the least of three
                             ids=("undisturbed", "once", "always"))
    def test_a_disturbed_run_is_repeated(self, folder, stolen, kept):
        shares = iter(stolen)
        with mock.patch.object(runs, "measure_once", lambda *_: TWO_SIZES | {"stolen_share": next(shares)}):
            runs.measure(GROUP, False, "shoal_perf", folder, print)
        with open(os.path.join(folder, "1x2.json"), encoding="utf-8") as file:
            left = json.load(file)
        assert (left["stolen_share"], left["tries"]) == kept

    def test_a_failed_try_leaves_the_result_before(self, folder):
        tries = mock.Mock(side_effect=[TWO_SIZES | {"stolen_share": 0.3}, runs.GroupFailed("it hangs")])
        with mock.patch.object(runs, "measure_once", tries), pytest.raises(runs.GroupFailed):
            runs.measure(GROUP, False, "shoal_perf", folder, print)
        with open(os.path.join(folder, "1x2.json"), encoding="utf-8") as file:
            assert json.load(file)["stolen_share"] == 0.3


class TestRemaining:
    def test_the_rest_is_expected_at_the_pace_so_far(self):
        now = [0.0]
        progress = Progress([10, 20, 30], stream=io.StringIO(), clock=lambda: now[0])
        progress.start("one")
        assert progress.remaining_s() == 60
        now[0] = 20.0  # twice as long as expected
        progress.start("two")
        assert progress.remaining_s() == 100
        now[0] = 30.0
        assert progress.remaining_s() == 90

    def test_words(self):
        assert [minutes(seconds) for seconds in (0, 59.6, 90, 600)] == ["0 s", "60 s", "2 min", "10 min"]
