"""shoal_train --on-failure shrink: ranks are killed at random moments, and the surviving ranks continue the same training."""
import json
import math
import os
import random
import re
import signal
import subprocess
import threading
import time

import pytest
import torch

from train_test import RUN, SMALL, TINY, TRAIN, children_of, train

SEED = int(os.environ.get("SHOAL_TEST_SEED", time.time_ns() % 1_000_000))
# Otherwise the reference run, which measures the links again, might choose an algorithm with another order of additions.
SAME_BITS = {"SHOAL_NUMERICS": "repeatable"}
LOST = r"\brank (\d+)\b.*\blost\b"  # the line of the training about a lost rank


def rank_of(process):
    with open(f"/proc/{process}/environ", "rb") as file:
        variables = dict(entry.split(b"=", 1) for entry in file.read().split(b"\0") if b"=" in entry)
    return int(variables[b"SHOAL_RANK"])


def alive(process):
    try:
        with open(f"/proc/{process}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Training:
    """A running training of `ranks` ranks that continues when it loses one."""

    def __init__(self, ranks, *arguments):
        command = [*RUN, str(ranks), "--keep-going", "--", TRAIN, "--on-failure", "shrink", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **SAME_BITS})
        self.lines, self.complaints = [], []
        self.changed = threading.Condition()
        self.readers = [threading.Thread(target=self._read, args=pair)
                        for pair in ((self.process.stdout, self.lines), (self.process.stderr, self.complaints))]
        for reader in self.readers:
            reader.start()
        self.ranks = {}

    def _read(self, stream, lines):
        for line in stream:
            with self.changed:
                lines.append(line.rstrip("\n"))
                self.changed.notify_all()

    def wait_for(self, pattern):
        self.wait_until(lambda: any(re.search(pattern, line) for line in self.lines), pattern)

    def wait_for_step(self, number):
        def reached():
            return any(int(step) >= number for step in re.findall(r"step (\d+)/", " ".join(self.lines)))
        self.wait_until(reached, f"step {number}")

    def wait_until(self, condition, what):
        with self.changed:
            if not self.changed.wait_for(condition, timeout=240):
                raise AssertionError(f"no '{what}' within 60 s in:\n" + self.output())
        if not self.ranks:
            self.ranks = {rank_of(child): child for helper in children_of(self.process.pid) for child in children_of(helper)}

    def kill(self, rank):
        os.kill(self.ranks[rank], signal.SIGKILL)

    def output(self):
        return "\n".join(self.lines + self.complaints)

    def end(self):
        """The exit status of `shoal run`."""
        try:
            status = self.process.wait(timeout=240)
        finally:
            self.process.terminate()
        for reader in self.readers:
            reader.join(timeout=10)
        self.process.stdout.close()
        self.process.stderr.close()
        return status


class TestSurvival:
    @pytest.fixture(autouse=True)
    def new_folder(self, folder):
        self.folder = folder

    def path(self, name):
        return os.path.join(self.folder, name)

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return json.load(file)

    def check_end(self, training, victims):
        """Checks that only the killed ranks have failed, and that no process is left."""
        status = training.end()
        output = training.output()
        assert status == 128 + signal.SIGKILL, output  # the status of the first rank that failed
        reports = [line for line in training.complaints if line.startswith("shoal run: rank")]
        assert [re.match(r"shoal run: rank (\d+) .*\bSIGKILL\b", line)[1] for line in reports] == [str(rank) for rank in victims], output
        assert [rank for rank, process in training.ranks.items() if alive(process)] == []
        events = [line for line in training.lines if re.search(LOST, line)]
        assert [re.search(LOST, line)[1] for line in events] == [str(rank) for rank in victims], output

    def fewer_ranks(self, before, after, ranks, course):
        """Changes a checkpoint as if the training had continued with fewer ranks."""
        content = dict(torch.load(self.path(before)))
        settings = json.loads(bytes(content.pop("settings").tolist()))
        settings.update({"ranks": ranks, "course": course})
        content["settings"] = torch.tensor(list(json.dumps(settings).encode()), dtype=torch.uint8)
        torch.save(tuple(content.items()), self.path(after))

    def trained(self, ranks, *arguments):
        done = train(*arguments, ranks=ranks, environment=SAME_BITS)
        assert done.returncode == 0, done.stdout + done.stderr

    def check_same_training(self, start, batch, *arguments):
        """Checks that the survivors' training has the bits of a training with as many ranks that starts at the last complete step."""
        document = self.read("survivors.json")
        (row,) = document["results"]
        losses = document["losses"]
        self.trained(start, *arguments, "--steps", str(losses[0]["step"]), "--json", self.path("part.json"),
                     "--checkpoint", self.path("part.pt"))
        expected = self.read("part.json")["results"][0]["step_loss"]
        seen, ranks = 0, start
        for i, loss in enumerate(losses):
            since = losses[i - 1]["step"] if i > 0 else 0
            seen += (loss["step"] - since) * ranks * batch
            ranks = loss["left"]
            end = losses[i + 1]["step"] if i + 1 < len(losses) else len(row["step_loss"])
            self.fewer_ranks("part.pt", "fewer.pt", ranks, [start, 0, loss["step"], seen])
            self.trained(ranks, *arguments, "--resume", self.path("fewer.pt"), "--steps", str(end), "--json", self.path("part.json"),
                         "--checkpoint", self.path("part.pt"))
            expected += self.read("part.json")["results"][0]["step_loss"]
        found = row["step_loss"]
        assert len(found) == len(expected)
        own = {loss["step"] - back for loss in losses for back in (0, 1, 2, 3)}  # means of the interrupted turn miss a rank
        for step, (ours, theirs) in enumerate(zip(found, expected, strict=True), start=1):
            assert math.isfinite(ours)
            if step not in own:
                assert ours == theirs, f"loss of step {step}; ranks were lost at {losses}"
        ours, theirs = dict(torch.load(self.path("survivors.pt"))), dict(torch.load(self.path("part.pt")))
        for key, tensor in theirs.items():
            if "/parameter/" in key or "/optimizer/" in key:
                assert torch.equal(ours[key], tensor), key

    @pytest.mark.parametrize("overlap", (pytest.param("next_forward", marks=pytest.mark.long), "backward"))
    def test_training_survives_the_loss_of_two_of_four_ranks(self, overlap):
        generator = random.Random(SEED)
        print(f"SHOAL_TEST_SEED={SEED}", flush=True)
        steps = 48
        arguments = ["--overlap", overlap, *SMALL]
        training = Training(4, "--steps", str(steps), "--json", self.path("survivors.json"), "--log", self.path("log"),
                            "--checkpoint", self.path("survivors.pt"), *arguments)
        victims = [generator.choice([1, 2, 3]), 0]  # rank 0 too: it prints, writes the files, and served the store
        generator.shuffle(victims)
        for victim, moments in zip(victims, (range(4, 16), range(20, 32)), strict=True):
            training.wait_for_step(generator.choice(moments))
            time.sleep(0.2 * generator.random())
            training.kill(victim)
            training.wait_for(LOST.replace(r"\d+", str(victim)))
        self.check_end(training, victims)
        document = self.read("survivors.json")
        assert [loss["ranks"] for loss in document["losses"]] == [[victim] for victim in victims]
        assert [loss["left"] for loss in document["losses"]] == [3, 2]
        assert all(0 <= loss["seconds"] < 20 for loss in document["losses"]), document["losses"]
        assert {one["rank"] for one in document["replicas"]} == {0, 1, 2, 3} - set(victims)
        assert len({one["parameters"] for one in document["replicas"]}) == 1
        assert len(document["results"][0]["step_loss"]) == steps
        with open(self.path("log"), encoding="utf-8") as file:
            events = [json.loads(line)["event"] for line in file]
        assert events.count("loss") == 2
        if overlap == "next_forward":
            self.check_same_training(4, 4, *arguments)

    @pytest.mark.long
    def test_one_rank_continues_alone_for_all_epochs(self):
        for name in ("data_batch_1.bin", "test_batch.bin"):  # 48 images: with 2 ranks 6 steps an epoch, with one 12
            with open(self.path(name), "wb") as file:
                file.write(b"".join(bytes([image % 10]) + bytes([5 * image]) * 3072 for image in range(48)))
        arguments = [*TINY, "--dataset", "cifar10", "--data", self.folder, "--evaluate", "--optimizer", "adam", "--schedule", "cosine"]
        training = Training(2, "--epochs", "8", "--json", self.path("survivors.json"), "--checkpoint", self.path("survivors.pt"), *arguments)
        training.wait_for("epoch 3/8")
        training.kill(0)
        self.check_end(training, [0])
        document = self.read("survivors.json")
        (loss,) = document["losses"]
        assert loss["left"] == 1
        assert [row["epoch"] for row in document["results"]] == list(range(1, 9))
        for row in document["results"]:
            made = len(row["step_loss"])
            with_both = min(max(loss["step"] - 6 * (row["epoch"] - 1), 0), 6)
            assert made == with_both + 2 * (6 - with_both), row  # the images of an epoch, each once
            assert 0 <= row["accuracy"] <= 1
        made = sum(len(row["step_loss"]) for row in document["results"])
        # One rank alone would have made 96 steps. The checkpoint stores the steps and the position in the images.
        assert made < 96
        done = train(*arguments, "--epochs", "8", "--resume", self.path("survivors.pt"))
        assert done.returncode == 1, done.stdout
        assert re.search(rf"survivors.pt: .*\b{made} steps\b", done.stderr), done.stderr

    @pytest.mark.parametrize("backend", ("gloo", "shoal,gloo", "shoal+backward,shoal+next_forward"))
    def test_other_backends_are_refused(self, backend):
        done = train("--backend", backend, "--on-failure", "shrink", "--steps", "1", *SMALL)
        assert done.returncode == 1, done.stdout
        assert re.search(r"--on-failure shrink: .*\bshoal\b", done.stderr), done.stderr

    def test_a_lost_rank_ends_the_training_by_default(self):
        process = subprocess.Popen([*RUN, "2", "--keep-going", "--", TRAIN, "--epochs", "100", *SMALL], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        for line in process.stdout:
            if "step 4/" in line:
                break
        os.kill(next(child for helper in children_of(process.pid) for child in children_of(helper) if rank_of(child) == 1), signal.SIGKILL)
        _, complaints = process.communicate(timeout=240)
        assert process.returncode == 128 + signal.SIGKILL, complaints
        assert re.search(r"shoal run: rank 0 .*\b1\b", complaints), complaints
        assert "rank 1" in complaints.split("shoal_train: ")[1]
