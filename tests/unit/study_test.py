"""The arithmetic of bench/study: the search for a rate, profiles, predictions, verdicts; and the names of rows are unique."""
import os
import re
import sys

import pytest

import support

sys.path.insert(0, os.path.join(support.REPOSITORY, "bench"))
from training_study import profile, rates, rows, scaling, tables

sys.path.insert(0, os.path.join(support.REPOSITORY, "bench", "train", "page"))
import speedups


def result(backend, speed, exposed_s=1.0, model="vgg16", **more):
    return {"backend": backend, "overlap": "backward", "model": model, "images_per_s": speed, "seconds": 10.0, "steps": 10, "bytes": 10 * 59e6,
            "comm_exposed_s": exposed_s, "rate": "1gbit", "nodes": 2, "ranks": 2, "epoch": 1, "accuracy": None, "loss": 1.0, "dataset": "cifar10",
            "batch_per_rank": 8, "threads": 1, "speedup_vs_1": None} | more


DATA = {"kind": "subset", "words": "CIFAR-10 subset, 10,000 of 50,000", "train_images": 10000, "test_images": 2000}


def document(*results, **study):
    return {"results": list(results), "study": study, "data": DATA, "machine": {"cpu": "EPYC", "kernel": "Linux 6"}}


class TestRates:
    """A machine that computes for 0.4 s and overlaps 0.25 s of communication with that."""
    BITS, COMPUTE_S, HIDDEN_S = 4e8, 0.4, 0.25

    def machine(self, mbit):
        wire_s = self.BITS / (1e6 * mbit * rates.GOODPUT)
        exposed_s = max(0.0, wire_s - self.HIDDEN_S)
        return rates.Probe(mbit, "gloo", self.COMPUTE_S + exposed_s, exposed_s)

    @pytest.mark.parametrize("guess_s", (0.05, 0.4, 3.0))  # two of them are far off
    def test_half_is_found_from_any_first_guess(self, guess_s):
        best, probes = rates.search(self.machine, self.BITS, guess_s)
        assert rates.NEAR[0] <= best.share <= rates.NEAR[1], probes
        assert len(probes) <= rates.TRIES

    def test_the_next_rate_is_nearer_to_half_exposed(self):
        assert rates.next_mbit(rates.Probe(100, "gloo", 1.0, 0.9), self.BITS) > 100
        assert rates.next_mbit(rates.Probe(2000, "gloo", 1.0, 0.0), self.BITS) < 2000

    def test_the_better_one_is_the_faster_other_backend(self):
        probe = rates.better_probe(500, [result("shoal", 90), result("gloo", 40), result("mpi", 50, 4.0)])
        assert (probe.backend, probe.share) == ("mpi", 0.4)


class TestRows:
    def test_names_are_unique_and_every_part_has_rows(self):
        every = rows.rows_of(rows.PARTS, 60)
        assert len({row.name for row in every}) == len(every)
        assert {row.part for row in every} == set(rows.PARTS) - {"scaling"}

    def test_all_rate_rows_take_half_an_hour_at_most(self):
        every = rows.rows_of(["rates-2x1", "rates-4x1"], None)
        assert {(row.shape, row.model) for row in every} == {(shape, model) for shape in rows.SHAPES for model in rows.NETWORKS}
        assert sum(row.expected_s() for row in every) < 1800


class TestProfile:
    def test_gradients_are_ready_when_backward_made_them(self):
        def event(kind, ts, dur, **more):
            return {"ph": "X", "cat": kind, "name": kind, "pid": 4, "tid": 0, "ts": ts, "dur": dur} | more

        events = [{"ph": "M", "name": "process_name", "pid": 4, "args": {"name": "shoal+next_forward rank 0"}},
                  event("backward", 50, 20, args={"gradient_bytes": 8}), event("forward", 0, 50), event("wait", 70, 1000),
                  event("backward", 1070, 10, args={"gradient_bytes": 4}), event("update", 1080, 5), event("wire", 60, 9, tid=3000)]
        found = profile.profiles(events)["shoal"]
        assert found["gradients"] == [[20e-6, 8], [30e-6, 4]]
        assert (found["forward_s"], found["backward_s"], found["wait_s"], found["update_s"]) == (50e-6, 30e-6, 1e-3, 5e-6)


class TestScaling:
    PROFILE = {"load_s": 0.0, "forward_s": 0.1, "backward_s": 0.2, "update_s": 0.0,
               "gradients": [[0.05, 1 << 20], [0.1, 20 << 20], [0.2, 10 << 20]]}

    def test_times_between_points_lie_on_lines(self):
        points = [(100, 10.0), (200, 20.0), (400, 60.0)]
        assert [scaling.interpolate(points, size) for size in (1, 100, 150, 300, 500)] == [10, 10, 15, 40, 80]

    def test_buckets_fill_in_the_order_of_gradients(self):
        assert scaling.buckets(self.PROFILE["gradients"]) == [(0.05, 1 << 20), (0.2, 30 << 20)]

    def test_a_step_waits_for_exposed_communication(self):
        points = [(1, 0.0), (1 << 20, 20e3), (31 << 20, 620e3)]  # 20 ms a MiB
        total_s, exposed_s = scaling.step_s(self.PROFILE, 1, points)
        assert exposed_s == pytest.approx(0.6, abs=1e-7)  # the last bucket is full when backward ends
        assert total_s == pytest.approx(0.9, abs=1e-7)
        alone_s, none = scaling.step_s(self.PROFILE, 10, None)
        assert alone_s == pytest.approx(0.03, abs=1e-7)
        assert none == 0

    def test_predictions_name_their_assumptions(self):
        predicted = scaling.predict({"vgg16": (self.PROFILE, 32)}, "shoal", simulate=lambda *_: {2: [(1, 0.0), (1 << 30, 1e6)]})
        assert {row["platform"] for row in predicted} == {name for name, *_ in scaling.PLATFORMS}
        for row in predicted:
            assert 0 < row["efficiency"] <= 1
            assert ("250 times" if row["platform"] == "p4d" else "10 Gbit/s") in row["words"]


class TestTables:
    def test_a_row_compares_with_the_best_other_backend(self):
        assert tables.ratio(document(result("shoal", 60), result("gloo", 40), result("mpi", 50))) == 1.2
        assert tables.ratio(document(result("shoal", 60))) is None

    def test_targets_are_met_missed_or_not_measured(self):
        documents = {row.name: document(result("shoal", 60, model=row.model), result("gloo", 40, model=row.model), part=row.part)
                     for row in rows.rows_of(["rates-2x1", "one-host"], None)}
        documents["one-host-vgg16"] = document(result("shoal", 97), result("gloo", 100))
        lines = tables.targets(documents)["rows"]

        def verdict(target):
            """(whether it is met, the figure) of the only target that matches."""
            (line,) = (line for line in lines if re.search(target, line[1]))
            return line[0], line[2]

        assert verdict("^2 hosts.*mean") == ("met", "1.50")
        assert verdict("^one host.*Gloo") == ("!not met", "!0.97")
        assert verdict("^4 hosts.*least")[1] == "!not measured"

    def test_the_bound_of_vgg16_is_the_wire_less_backward(self):
        name = "1gbit-2x1-batch8-vgg16"
        mine = document(result("shoal", 60, exposed_s=3.0), result("gloo", 50), profiles={"shoal": {"backward_s": 0.2}})
        ((_, exposed, bound, wire, _),) = tables.vgg_bounds({name: mine})
        assert wire == pytest.approx(8 * 59e6 / (1e9 * rates.GOODPUT), abs=1e-7)
        assert bound == pytest.approx(wire - 0.2, abs=1e-7)
        assert exposed == pytest.approx(0.3, abs=1e-7)

    def vgg(self, exposed_s, backward_s, batch=8):
        return {f"1gbit-2x1-batch{batch}-vgg16": document(result("shoal", 60, exposed_s=exposed_s), result("gloo", 50),
                                                          profiles={"shoal": {"backward_s": backward_s}})}

    def test_any_exposed_time_misses_a_bound_of_0(self):
        documents = self.vgg(3.0, 0.2) | self.vgg(0.5, 0.9, batch=32)
        shown, hidden = tables.vgg_table(documents)["rows"]
        assert shown[-1] == "30.0 %"
        assert (hidden[5], hidden[6], hidden[8]) == ("0.0", "!50.0", "5.0 %")
        assert not re.search(r"\d\.\d", hidden[7]), "there is no ratio over 0"
        ratio, share = tables.vgg_verdicts(documents)
        assert ratio[0::2] == ["met", "1.02"]  # 0.3 over 8 x 59e6 / (1e9 x GOODPUT) - 0.2
        assert "1 rows" in ratio[1]
        assert share[0::2] == ["!not met", "!5.0"]
        assert tables.vgg_verdicts(self.vgg(0.0, 0.9))[1][0::2] == ["met", "0.0"]

    def accuracy(self, alone, together):
        seeds = iter(zip(alone, together))
        documents = {}
        for row in rows.rows_of(["accuracy"], None):
            if row.dataset == "cifar10":
                if row.ranks == 1:
                    one, two = next(seeds)
                documents[row.name] = document(result("shoal", 9, accuracy=one if row.ranks == 1 else two))
        (line,) = tables.accuracy_table(documents)["rows"]
        return line

    def test_accuracy_is_compared_by_means_of_seeds(self):
        assert self.accuracy([0.70] * 3, [0.706] * 3)[-1] == "!+0.60"

    def test_accuracy_has_each_seed_and_a_standard_error(self):
        line = self.accuracy([0.50, 0.50, 0.50], [0.52, 0.48, 0.503])
        assert line[0] == "cifar10 subset"
        assert line[-3:] == ["+2.00, -2.00, +0.30", "1.58", "+0.10"]  # sqrt(2 x 50 x 50 / 2000)

    def test_epochs_are_counted_from_all_steps(self):
        name = "setting-cifar10-vgg16"
        made = [result("shoal", 60, epoch=epoch, step_loss=[1.0] * steps, epoch_steps=79, steps=steps - 2) for epoch, steps in ((1, 79), (2, 45))]
        (line,) = tables.setting_table({name: document(*made)})["rows"]
        assert line[:4] == ["cifar10 subset", "vgg16", "shoal", "1.57"]

    def test_rows_show_the_speed_up_over_one_rank(self):
        row = next(row for row in rows.rows_of(["1gbit-batch8"], None) if row.model == "vgg16")
        found = tables.speeds("T", "", [row], {row.name: document(result("shoal", 60, speedup_vs_1=1.5), result("gloo", 40))})
        assert found["rows"][0][found["head"].index("shoal / one rank")] == "1.50 x"

    def test_the_summary_has_speeds_ratios_and_means(self):
        documents = {row.name: document(result("shoal", 60, model=row.model, rate="500mbit"), result("gloo", 40, model=row.model))
                     for row in rows.rows_of(["rates-2x1"], None)}
        documents["one-host-vgg16"] = document(result("shoal", 97), result("gloo", 100))

        def cells(*parts):
            lines = [[cell.strip() for cell in line.strip("|").split("|")]
                     for line in tables.speeds_by_network(documents, parts).splitlines()]
            return {line[0]: line for line in lines}

        rates_found = cells("rates-2x1", "rates-4x1")
        assert rates_found["network"] == ["network", "2 hosts x 1", "4 hosts x 1"]
        assert rates_found["resnet18"][1] == "60 at 500 Mbit/s, 1.50 x"
        assert rates_found["vgg16"][2] == "", "not measured"
        assert rates_found["geometric mean"][1] == "1.50 x"
        plain = cells("1gbit-batch8", "1gbit-batch32", "one-host")
        assert plain["network"][1:] == ["batch 8, 2 hosts", "batch 8, 4 hosts", "batch 32, 2 hosts", "batch 32, 4 hosts", "one host"]
        assert plain["vgg16"][-1] == "97, **0.97 x**"
        assert plain["geometric mean"][-1] == "", "no mean of a part"
        assert "| resnet18 | 60 at 500 Mbit/s, 1.50 x |" in tables.summary_page(documents)

    def test_markdown_shows_misses_in_bold(self):
        text = tables.to_markdown([tables.table("T", "", ["a", "b"], [["x", "!y"]])])
        assert "| x | **y** |" in text


class TestSpeedups:
    """Over one rank."""

    def filled(self, *alone, other=None):
        together = document(result("shoal", 60), result("gloo", 40))
        if other:
            together["machine"] = other
        speedups.fill([*alone, together])
        return [row["speedup_vs_1"] for row in together["results"]]

    def test_the_run_of_one_rank_has_as_many_threads(self):
        fits = document(result("shoal", 30, ranks=1, nodes=1))
        assert self.filled(fits) == [2.0, 40 / 30]
        assert self.filled(fits, document(result("shoal", 50, ranks=1, threads=2))) == [2.0, 40 / 30]

    @pytest.mark.parametrize("difference", ({"threads": 2}, {"threads": None}, {"batch_per_rank": 32}, {"model": "resnet18"},
                                            {"dataset": "synthetic"}),
                             ids=("threads", "no-threads", "batch", "model", "dataset"))
    def test_a_run_of_one_rank_that_differs_does_not_count(self, difference):
        assert self.filled(document(result("shoal", 30, ranks=1) | difference)) == [None, None]

    def test_the_run_of_one_rank_is_of_the_same_machine(self):
        fits = document(result("shoal", 30, ranks=1), result("gloo", 20, ranks=1))
        assert self.filled(fits) == [2.0, 2.0]
        assert self.filled(fits, other={"cpu": "EPYC", "kernel": "Linux 5"}) == [None, None]

    def test_a_speed_up_of_the_run_itself_stays(self):
        known = document(result("shoal", 60, speedup_vs_1=1.7), result("shoal", 30, ranks=1))
        speedups.fill([known])
        assert [row["speedup_vs_1"] for row in known["results"]] == [1.7, 1.0]
