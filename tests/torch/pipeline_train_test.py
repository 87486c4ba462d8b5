"""shoal_train --pipeline: the losses of one process, the commands of the flow, replicas, bad input."""
import json
import os
import re
import subprocess

import pytest

import support

BIN = os.path.join(support.BUILD, "bin")
TRAIN = os.path.join(BIN, "shoal_train")
SHOAL = os.path.join(BIN, "shoal")
FIVE = ("vgg16", "resnet18", "mobilenet_v2", "shufflenet_v2_x1", "densenet121")


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


class TestPipelineTraining:
    @pytest.fixture(autouse=True)
    def new_folder(self, folder):
        self.folder = folder

    def path(self, name):
        return os.path.join(self.folder, name)

    def train(self, *arguments, ranks=1, model="shufflenet_v2_x0.5", steps=4):
        """The result of a training, and its output."""
        file = self.path("results.json")
        launcher = [SHOAL, "run", "-n", str(ranks), "--"] if ranks > 1 else []
        done = run(*launcher, TRAIN, "--dataset", "synthetic", "--model", model, "--threads", "1", "--block", "2", "--steps", str(steps),
                   "--json", file, *arguments)
        with open(file, encoding="utf-8") as opened:
            return json.load(opened)["results"][0], done

    def refused(self, facts, *arguments):
        done = subprocess.run([TRAIN, "--dataset", "synthetic", *arguments], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1, done.stdout + done.stderr
        for fact in facts:
            assert re.search(fact, done.stderr), done.stderr

    def test_three_commands_train_as_one_process(self):
        profile, cuts = self.path("p.json"), self.path("cuts.json")
        run(TRAIN, "--dataset", "synthetic", "--model", "shufflenet_v2_x0.5", "--batch", "4", "--threads", "1", "--profile-out", profile)
        run(SHOAL, "partition", profile, "--partitions", "2", "--microbatches", "3", "--optimize", "memory", "--optimizer-states", "1",
            "-o", cuts)
        row, _ = self.train("--pipeline", "interleaved", "--partition", cuts, "--profile", profile, "--batch", "12", ranks=2)
        alone, _ = self.train("--batch", "4", "--accumulate", "3")
        assert row["step_loss"] == alone["step_loss"], "bit for bit"
        with open(cuts, encoding="utf-8") as opened:
            partition = json.load(opened)
        assert [rank["first_units"] for rank in row["pipeline_ranks"]] == [["stem"], partition["cuts"]]
        assert (row["pipeline"], row["partitions"], row["microbatches"], row["replicas"]) == ("interleaved", 2, 3, 1)
        assert 0 < row["bubble"] < 1 and 0 < row["bubble_predicted"] < 1
        assert row["peak_bytes_predicted"] == max(stage["bytes"] for stage in partition["stages"])
        for rank in row["pipeline_ranks"]:
            assert 0.5 * rank["peak_bytes_predicted"] < rank["peak_bytes"] < 1.1 * rank["peak_bytes_predicted"] + 2**20, rank
        assert row["images_per_s"] > 0 and row["ranks"] == 2

    def test_recomputation_trains_alike_in_less_memory(self):
        options = ("--pipeline", "simple", "--partitions", "2", "--microbatches", "8", "--batch", "16", "--optimize", "memory")
        kept, _ = self.train(*options, ranks=2, steps=3)
        limit = str(kept["peak_bytes_predicted"] * 4 // 5)
        row, done = self.train(*options, "--recompute", "where_needed", "--memory-limit-bytes", limit, "--batch-norm", "deferred", ranks=2,
                               steps=3)
        assert row["step_loss"] == kept["step_loss"], "bit for bit"
        assert "stages that recompute: " in done.stdout
        assert row["peak_bytes_predicted"] <= int(limit) and row["peak_bytes"] < kept["peak_bytes"]
        for rank in row["pipeline_ranks"]:
            assert 0.5 * rank["peak_bytes_predicted"] < rank["peak_bytes"] < 1.1 * rank["peak_bytes_predicted"] + 2**20, rank

    def test_replicas_stay_equal(self):
        row, done = self.train("--pipeline", "1f1b", "--partitions", "2", "--microbatches", "2", "--optimize", "speed", "--ddp", "--placement",
                               "spread", "--clip-norm", "1", "--batch", "4", "--evaluate", ranks=4)
        assert "note:" in done.stdout and "predicted step" in done.stdout
        ranks = row["pipeline_ranks"]
        assert [(rank["replica"], rank["stage"]) for rank in ranks] == [(0, 0), (1, 0), (0, 1), (1, 1)]
        assert ranks[0]["parameters"] == ranks[1]["parameters"] and ranks[2]["parameters"] == ranks[3]["parameters"]
        assert ranks[0]["parameters"] != ranks[2]["parameters"]
        assert 0 <= row["accuracy"] <= 1 and row["replicas"] == 2

    def test_bad_input_names_option(self):
        self.refused(["fastest", "1f1b"], "--pipeline", "fastest", "--partitions", "1")  # others: pipeline_plan_test.cc

    @pytest.mark.long
    @pytest.mark.parametrize("partitions", (2, 4))
    @pytest.mark.parametrize("model", FIVE)
    def test_five_networks_train_as_one_process(self, model, partitions):
        alone, _ = self.train("--batch", "2", "--accumulate", "4", model=model, steps=20)
        for schedule in ("simple", "1f1b"):
            row, _ = self.train("--pipeline", schedule, "--partitions", str(partitions), "--microbatches", "4", "--batch", "8",
                                ranks=partitions, model=model, steps=20)
            assert row["step_loss"] == alone["step_loss"], schedule
