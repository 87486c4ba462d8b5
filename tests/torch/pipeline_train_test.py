"""shoal_train --pipeline: the losses of one process, the commands of the flow, replicas, checkpoints, bad input."""
import json
import os
import re
import signal
import subprocess

import numpy
import pytest
import torch

import reference_models
import support
from survival_test import rank_of
from train_test import children_of

BIN = os.path.join(support.BUILD, "bin")
TRAIN = os.path.join(BIN, "shoal_train")
SHOAL = os.path.join(BIN, "shoal")
FIVE = ("vgg16", "resnet18", "mobilenet_v2", "shufflenet_v2_x1", "densenet121")


def check_memory(row):
    """Each rank had what was predicted: 1.1 times, and 1 MiB for the images and targets of a batch, losses and layouts."""
    for rank in row["pipeline_ranks"]:
        assert 0.5 * rank["peak_bytes_predicted"] < rank["peak_bytes"] < 1.1 * rank["peak_bytes_predicted"] + 2**20, rank


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

    def train(self, *arguments, ranks=1, model="shufflenet_v2_x0.5", steps=4, data=("--dataset", "synthetic")):
        """The result of a training, and its output."""
        file = self.path("results.json")
        launcher = [SHOAL, "run", "-n", str(ranks), "--"] if ranks > 1 else []
        done = run(*launcher, TRAIN, *data, "--model", model, "--threads", "1", "--block", "2", "--steps", str(steps), "--json", file,
                   *arguments)
        with open(file, encoding="utf-8") as opened:
            return json.load(opened)["results"][0], done

    def refused(self, facts, *arguments):
        command = [TRAIN, "--dataset", "synthetic", "--threads", "1", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
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
        check_memory(row)
        assert row["images_per_s"] > 0 and row["ranks"] == 2

    @pytest.mark.long
    def test_recomputation_trains_alike_in_less_memory(self):
        options = ("--pipeline", "simple", "--partitions", "2", "--microbatches", "8", "--batch", "16", "--optimize", "memory")
        kept, _ = self.train(*options, ranks=2, steps=3)
        limit = str(kept["peak_bytes_predicted"] * 4 // 5)
        row, done = self.train(*options, "--recompute", "where_needed", "--memory-limit-bytes", limit, "--batch-norm", "deferred", ranks=2,
                               steps=3)
        assert row["step_loss"] == kept["step_loss"], "bit for bit"
        assert "stages that recompute: " in done.stdout and (row["recompute"], row["batch_norm"]) == ("where_needed", "deferred")
        assert row["peak_bytes_predicted"] <= int(limit) and row["peak_bytes"] < kept["peak_bytes"]
        check_memory(row)

    @pytest.mark.long
    def test_recomputed_units_train_alike_in_less_memory(self):
        profile, cuts = self.path("p.json"), self.path("cuts.json")
        run(TRAIN, "--dataset", "synthetic", "--model", "shufflenet_v2_x0.5", "--batch", "2", "--threads", "1", "--profile-out", profile)
        options = ("--pipeline", "simple", "--partitions", "2", "--microbatches", "8", "--optimizer-states", "1", "--optimize", "memory")
        whole = json.loads(run(SHOAL, "partition", profile, *options, "--json").stdout)
        limit = str(max(whole["stage_bytes"]) * 2 // 3)
        run(SHOAL, "partition", profile, *options, "--recompute-units", "where_needed", "--memory-limit-bytes", limit, "-o", cuts)
        training = ("--profile", profile, "--batch", "16", "--link-latency-us", "10", "--link-bytes-per-us", "1000")
        kept, _ = self.train(*training, *options[:6], "--optimize", "memory", ranks=2, steps=3)
        some, done = self.train(*training, "--partition", cuts, ranks=2, steps=3)
        every, _ = self.train(*training, "--partition", cuts, "--recompute-units", "all", ranks=2, steps=3)
        assert "units that recompute: stage " in done.stdout and every["recompute_units"] == "all"
        names = [unit["name"] for unit in json.loads(open(profile, encoding="utf-8").read())["units"]]
        assert set(some["recompute_units"].split(",")) < set(names), "some units, not all"
        for row in (some, every):
            assert row["step_loss"] == kept["step_loss"], "bit for bit"
            assert row["peak_bytes"] < kept["peak_bytes"]
            check_memory(row)
        assert some["peak_bytes_predicted"] <= int(limit)
        self.refused(["--recompute-units", "needs a pipeline", "--partitions"], "--recompute-units", "all")
        self.refused(["--recompute ", "needs a pipeline"], "--recompute", "all")

    @pytest.mark.long
    def test_memory_is_predicted_with_large_parameters(self):
        # A backward has a second gradient of a layer's parameters, up to 9.4 MB here, before it adds it to the first.
        row, _ = self.train("--pipeline", "1f1b", "--partitions", "2", "--microbatches", "4", "--batch", "8", ranks=2, model="resnet18", steps=2)
        check_memory(row)

    def test_replicas_stay_equal(self):
        row, done = self.train("--pipeline", "1f1b", "--partitions", "2", "--microbatches", "2", "--optimize", "speed", "--ddp", "--placement",
                               "spread", "--clip-norm", "1", "--batch", "4", "--evaluate", ranks=4)
        assert "note:" in done.stdout and "predicted step" in done.stdout
        ranks = row["pipeline_ranks"]
        assert [(rank["replica"], rank["stage"]) for rank in ranks] == [(0, 0), (1, 0), (0, 1), (1, 1)]
        assert ranks[0]["parameters"] == ranks[1]["parameters"] and ranks[2]["parameters"] == ranks[3]["parameters"]
        assert ranks[0]["parameters"] != ranks[2]["parameters"]
        assert 0 <= row["accuracy"] <= 1 and row["replicas"] == 2

    @pytest.mark.long
    def test_slices_train_as_whole_layers(self):
        slices = ("--pipeline", "1f1b", "--partitions", "2", "--microbatches", "2", "--tensor-parallel", "2", "--clip-norm", "1", "--batch", "8")
        row, done = self.train(*slices, "--evaluate", "--checkpoint", self.path("saved"), "--full-checkpoint", ranks=4)
        alone, _ = self.train("--pipeline", "1f1b", "--partitions", "1", "--microbatches", "2", "--clip-norm", "1", "--batch", "8", "--evaluate")
        # Batch normalisation of few values enlarges roundings; layer_pairs_test.cc compares in float64.
        assert row["step_loss"][:2] == pytest.approx(alone["step_loss"][:2], rel=1e-4)
        assert row["accuracy"] == pytest.approx(alone["accuracy"], abs=0.01)
        ranks = row["pipeline_ranks"]
        assert [(rank["stage"], rank["slice"]) for rank in ranks] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert row["tensor_parallel"] == 2 and "layers are split over 2 ranks" in done.stdout
        assert row["peak_bytes_predicted"] < alone["peak_bytes_predicted"]
        check_memory(row)
        rest, _ = self.train("--pipeline", "1f1b", "--partitions", "1", "--microbatches", "2", "--clip-norm", "1", "--batch", "8", "--resume",
                             self.path("saved/step-4/full.pt"), steps=5)
        again, _ = self.train(*slices, "--resume", self.path("saved"), ranks=4, steps=5)
        assert rest["step_loss"] == pytest.approx(again["step_loss"], rel=1e-4)

    @pytest.mark.long
    def test_checkpoints_go_on_with_the_same_bits(self):
        saved = self.path("saved")
        pipelines = ("--pipeline", "1f1b", "--partitions", "2", "--microbatches", "2", "--batch", "4", "--ddp")
        replicas = ("--batch", "2", "--accumulate", "2", "--overlap", "next_forward")
        whole, _ = self.train(*replicas, ranks=2, steps=6)
        half, _ = self.train(*pipelines, "--checkpoint", saved, "--full-checkpoint", ranks=4, steps=3)
        assert half["step_loss"] == whole["step_loss"][:3]
        assert sorted(os.listdir(saved)) == ["newest", "step-3"]
        full = self.path("saved/step-3/full.pt")
        for arguments, ranks in (((*pipelines, "--resume", saved), 4), ((*replicas, "--resume", full), 2), ((*pipelines, "--resume", full), 4),
                                 (("--pipeline", "simple", "--partitions", "1", *pipelines[4:], "--resume", saved), 2)):
            rest, done = self.train(*arguments, ranks=ranks, steps=6)
            assert rest["step_loss"] == whole["step_loss"][3:], arguments
            starts_generators = arguments[1] == "simple" or arguments[0] == "--pipeline" and arguments[-1] == full
            assert ("generators" in done.stdout) == starts_generators, done.stdout
        one = ("--pipeline", "simple", "--partitions", "1", "--batch", "4", "--resume", saved, "--model", "shufflenet_v2_x0.5")
        self.refused(["step-3", "seed 1", "2"], *one, "--seed", "2")
        self.refused(["full.pt", "clip_norm", "none"], *one[:6], *one[8:], "--resume", full, "--clip-norm", "1")
        self.refused(["full.pt", "batch 4", "8"], *one[:4], *one[8:], "--resume", full, "--batch", "8")
        self.refused(["saved", r"\b3 steps"], *one, "--steps", "3")
        os.remove(self.path("saved/step-3/stage1-slice0.pt"))
        self.refused(["stage1-slice0.pt", "rank"], *one)

    @pytest.mark.long
    def test_python_reads_checkpoints(self):
        images = numpy.random.default_rng(5).integers(0, 256, (4, 3073), dtype=numpy.uint8)
        images[:, 0] %= 10
        for name in ("data_batch_1.bin", "test_batch.bin"):  # an epoch is one step on all images
            images.tofile(self.path(name))
        more = {"data": ("--dataset", "cifar10", "--data", self.folder, "--no-augment", "--epochs", "3", "--lr", "0.1"), "steps": 3}
        saved = self.path("saved")
        self.train("--pipeline", "1f1b", "--partitions", "2", "--batch", "4", "--checkpoint", saved, "--full-checkpoint", ranks=2,
                   **{**more, "steps": 2})
        full = self.path("saved/step-2/full.pt")
        rest, _ = self.train("--batch", "4", "--resume", full, **more)
        content = dict(torch.load(full))
        names = json.loads(bytes(content["settings"].tolist()))["names"]
        twin = reference_models.make("shufflenet_v2_x0.5", 3, 10)
        for kind, tensors in (("parameter", list(twin.parameters())), ("buffer", list(twin.buffers()))):
            assert len(tensors) == len(names[kind + "s"])
            for name, tensor in zip(names[kind + "s"], tensors):
                tensor.data.copy_(content[f"shoal+next_forward/{kind}/{name}"])
        mean, deviation = (torch.tensor(v).view(3, 1, 1) for v in ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)))
        rows = torch.from_numpy(images)
        scores = twin((rows[:, 1:].view(-1, 3, 32, 32) / 255 - mean) / deviation)
        loss = torch.nn.functional.cross_entropy(scores, rows[:, 0].long()).item()
        assert rest["step_loss"] == [pytest.approx(loss, rel=1e-4)]
        with open(self.path("saved/step-2/manifest.json"), encoding="utf-8") as opened:
            manifest = json.load(opened)
        for tensor in manifest["tensors"]:
            if not tensor["name"].startswith("generator/"):
                file = manifest["files"][tensor["file"]]
                part = dict(torch.load(self.path("saved/step-2/" + file["name"])))[tensor["name"]]
                assert list(part.shape) == tensor["shape"] and torch.equal(part, content["shoal+next_forward/" + tensor["name"]])

    def test_killed_rank_is_named_by_all(self):
        command = (SHOAL, "run", "-n", "4", "--keep-going", "--", TRAIN, "--dataset", "synthetic", "--model", "shufflenet_v2_x0.5", "--threads",
                   "1", "--block", "1", "--steps", "600", "--pipeline", "1f1b", "--partitions", "2", "--tensor-parallel", "2", "--batch", "4")
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
            while "step 3/" not in job.stdout.readline():
                assert job.poll() is None, job.stderr.read()
            ranks = {rank_of(rank): rank for helper in children_of(job.pid) for rank in children_of(helper)}
            os.kill(ranks[3], signal.SIGKILL)
            _, complaints = job.communicate(timeout=240)
        errors = re.findall(r"(?m)^shoal_train: .*", complaints)
        assert len(errors) == 3, complaints
        for error in errors:
            assert re.search(r"\brank 3\b", error), error
            if "pipeline of the ranks" in error:  # else it died between two steps
                assert re.search(r"\bstep \d+: rank \d, stage \d: .*\brank 3 of the job\b", error), error

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

    @pytest.mark.long
    @pytest.mark.parametrize("model", FIVE)
    def test_five_networks_need_the_memory_that_is_predicted(self, model):
        profile = self.path("p.json")
        run(TRAIN, "--dataset", "synthetic", "--model", model, "--batch", "4", "--threads", "1", "--profile-out", profile)
        rows = {}
        for partitions in (2, 4):
            for schedule in ("simple", "1f1b"):
                row, _ = self.train("--pipeline", schedule, "--partitions", str(partitions), "--microbatches", "8", "--batch", "32", "--profile",
                                    profile, ranks=partitions, model=model, steps=2)
                check_memory(row)
                rows[schedule, partitions] = row["peak_bytes"]
        if model == "mobilenet_v2":  # two microbatches held in place of eight; parameters are few
            assert rows["simple", 2] / rows["1f1b", 2] == pytest.approx(4, abs=1)

    @pytest.mark.long
    @pytest.mark.parametrize("optimizer, model", zip(("sgd", "adadelta", "adam", "adadelta", "sgd"), FIVE))
    def test_five_networks_go_on_in_other_pipelines(self, model, optimizer):
        saved = self.path("saved")
        options = ("--optimizer", optimizer, "--lr", "0.01")
        pipeline = ("--microbatches", "4", "--batch", "8", *options)
        alone, _ = self.train("--batch", "2", "--accumulate", "4", *options, model=model, steps=4)
        self.train("--pipeline", "virtual", "--chunks", "2", "--partitions", "2", "--optimize", "speed", *pipeline, "--checkpoint", saved,
                   "--full-checkpoint", ranks=2, model=model, steps=2)
        for schedule, partitions in (("1f1b", 4), ("simple", 2), ("interleaved", 1)):
            for source in (saved, self.path("saved/step-2/full.pt")):
                rest, _ = self.train("--pipeline", schedule, "--partitions", str(partitions), *pipeline, "--resume", source, ranks=partitions,
                                     model=model, steps=4)
                assert rest["step_loss"] == alone["step_loss"][2:], (schedule, partitions, source)
