"""The instructions of repeated calls are within the committed budgets.

    ctest --test-dir build/release -L cost        compare
    python3 tests/cost/cost_test.py --update      measure with build/release and rewrite budgets.json
"""
import json
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import callgrind

import support

BUDGETS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "budgets.json")
PROGRAM = os.path.join(support.BUILD, "bin/cost_paths")
REPETITIONS = 15  # a call during which the machine did something else counts more; the median does not see it
SELECTOR_REPETITIONS = 3  # it is one function in one thread, whose counts hardly differ


def measure(path, extra_work=0):
    """({function: instructions}, their sum) of the repetition of median cost."""
    repetitions = SELECTOR_REPETITIONS if path.startswith("selector") else REPETITIONS
    profiles = callgrind.profiles([PROGRAM, path, str(repetitions), str(extra_work)], "shoal_cost_counted")
    if len(profiles) != repetitions:
        raise RuntimeError(f"{path}: callgrind wrote {len(profiles)} profiles of {repetitions} repetitions")
    middle = sorted(profiles, key=callgrind.counted)[repetitions // 2]
    return middle, callgrind.counted(middle)


def compiler():
    return subprocess.run([PROGRAM, "compiler"], capture_output=True, text=True, check=True).stdout.strip()


def load():
    with open(BUDGETS, encoding="utf-8") as file:
        return json.load(file)


def complaint(path, count, budget, tolerance):
    """Why `count` is too much; "" where it is not."""
    if count <= budget * (1 + tolerance):
        return ""
    return (f"{path} costs {count} instructions, {100 * (count / budget - 1):.1f} % more than its budget of {budget}. Make it cheaper; or, where "
            "the work is worth it, say why in the commit and run: python3 tests/cost/cost_test.py --update")


class TestBudgets:
    @classmethod
    def setup_class(cls):
        cls.budgets = load()
        reason = callgrind.missing()
        if not reason and compiler() != cls.budgets["compiler"]:
            reason = f"the budgets are those of {cls.budgets['compiler']}, this build is of {compiler()}"
        if reason:
            raise unittest.SkipTest(reason)  # not pytest.skip: with --update this file runs without pytest

    def check(self, path):
        profile, count = measure(path)
        budget = self.budgets["instructions"][path]
        print(f"{path}: {count} of {budget}", end=" ", file=sys.stderr)
        words = complaint(path, count, budget, self.budgets["tolerance"])
        most_expensive = sorted(profile.items(), key=lambda item: -item[1])[:10]
        assert not words, "\n".join([words] + [f"{cost:9} {name}" for name, cost in most_expensive])
        return count

    def test_all_reduce_of_8_bytes_in_a_host(self):
        self.check("all_reduce_8_bytes_shm")

    def test_all_gather_of_8_bytes_in_a_host(self):
        self.check("all_gather_8_bytes_shm")

    def test_scatter_of_8_bytes_in_a_host(self):
        self.check("scatter_8_bytes_shm")

    def check_job(self, small, large):
        """A call of a group costs about the same in a large job."""
        count, alone = self.check(large), self.check(small)
        assert count <= 1.1 * alone, f"{large} costs {count} instructions, {small} only {alone}"

    def test_a_group_of_a_job_in_a_host(self):
        self.check_job("group_of_2_in_job_of_2_shm", "group_of_2_in_job_of_32_shm")

    def test_a_group_of_a_job_over_tcp(self):
        self.check_job("group_of_2_in_job_of_2_tcp", "group_of_2_in_job_of_16_tcp")

    def test_a_tile_through_shared_memory(self):
        self.check("tile_shm")

    def test_a_tile_through_tcp(self):
        self.check("tile_tcp")

    def test_64_look_ups_of_a_plan(self):
        self.check("plan_look_up")

    def test_a_recorder_that_is_off(self):
        self.check("recorder_off")

    def test_the_signatures_of_64_calls(self):
        self.check("signature")

    def test_the_selector(self):
        self.check("selector")
        self.check("selector_1x32")
        self.check("selector_32x8")
        self.check("selector_128x8_broadcast")
        self.check("selector_128x8_gather")
        self.check("selector_128x8_reduce_scatter")

    def test_every_path_has_a_budget(self):
        paths = subprocess.run([PROGRAM, "paths"], capture_output=True, text=True, check=True).stdout.split()
        assert sorted(paths) == sorted(self.budgets["instructions"])

    def test_more_work_on_a_path_is_noticed(self):
        passes = self.budgets["instructions"]["tile_shm"] // 10  # three instructions each
        _, count = measure("tile_shm", extra_work=passes)
        assert complaint("tile_shm", count, self.budgets["instructions"]["tile_shm"], self.budgets["tolerance"])


class TestRules:
    def test_5_percent_more_passes_and_any_more_does_not(self):
        assert complaint("x", 1050, 1000, 0.05) == ""
        words = complaint("x", 1051, 1000, 0.05)
        for fact in ("x ", "1051 ", "5.1 %", "1000"):
            assert fact in words

    def test_a_profile_counts_the_instructions_of_each_function(self):
        text = ("fl=(1) a.cc\nfn=(1) shoal::one()\n10 7\ncfn=(2) shoal::two()\ncalls=1 20\n11 100\n12 3\n\nfn=(2)\n20 60\n"
                "fn=(3) __memcpy_avx_unaligned_erms\n5 40\ntotals: 110\n")
        profile = callgrind.self_costs(text)
        assert profile == {"shoal::one()": 10, "shoal::two()": 60, "__memcpy_avx_unaligned_erms": 40}
        assert callgrind.counted(profile) == 70


def update():
    if reason := callgrind.missing():
        sys.exit(f"nothing measured: {reason}")
    document = load()
    document["compiler"] = compiler()
    for path, before in document["instructions"].items():
        document["instructions"][path] = measure(path)[1]
        print(f"{path}: {before} -> {document['instructions'][path]}")
    with open(BUDGETS, "w", encoding="utf-8") as file:
        file.write(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        sys.exit("cost_test.py --update rewrites budgets.json; pytest runs the tests")
    update()
