"""shoal_train --on-failure shrink: ranks are killed at random moments, and the others go on with the same training."""
import json
import math
import os
import random
import re
import signal
import subprocess
import tempfile
import threading
import time
import unittest

import torch

import cases
from train_test import RUN, SMALL, TINY, TRAIN, children_of, train

SEED = int(os.environ.get("SHOAL_TEST_SEED", time.time_ns() % 1_000_000))
# Else an algorithm may be chosen in the run to compare with that adds in another order: the links are measured anew.
SAME_BITS = {"SHOAL_NUMERICS": "repeatable"}


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
    """A training of `ranks` ranks that are let go on when one is lost."""

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

    def wait_for(self, words):
        self.wait_until(lambda: any(words in line for line in self.lines), words)

    def wait_for_step(self, number):
        def reached():
            return any(int(step) >= number for step in re.findall(r"step (\d+)/", " ".join(self.lines)))
        self.wait_until(reached, f"step {number}")

    def wait_until(self, condition, what):
        with self.changed:
            if not self.changed.wait_for(condition, timeout=60):
                raise AssertionError(f"no '{what}' in:\n" + self.said())
        if not self.ranks:
            self.ranks = {rank_of(child): child for helper in children_of(self.process.pid) for child in children_of(helper)}

    def kill(self, rank):
        os.kill(self.ranks[rank], signal.SIGKILL)

    def said(self):
        return "\n".join(self.lines + self.complaints)

    def end(self):
        """The exit status of `shoal run`."""
        try:
            status = self.process.wait(timeout=60)
        finally:
            self.process.terminate()
        for reader in self.readers:
            reader.join(timeout=10)
        self.process.stdout.close()
        self.process.stderr.close()
        return status


class Survival(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return json.load(file)

    def check_end(self, training, victims):
        """The killed ranks are all that went wrong, and nothing is left."""
        status = training.end()
        said = training.said()
        self.assertEqual(status, 128 + signal.SIGKILL, said)  # the first that failed
        told = [line for line in training.complaints if line.startswith("shoal run: rank")]
        self.assertEqual([line.split(";")[0] for line in told], [f"shoal run: rank {rank} was killed by SIGKILL" for rank in victims], said)
        self.assertEqual([rank for rank, process in training.ranks.items() if alive(process)], [])
        events = [line for line in training.lines if "lost:" in line]
        self.assertEqual(len(events), len(victims), said)
        for rank, line in zip(victims, events, strict=True):
            self.assertIn(f"rank {rank} is lost: ", line)

    def fewer_ranks(self, before, after, ranks, course):
        """Turns a checkpoint into one of a training that goes on with fewer ranks from there."""
        content = dict(torch.load(self.path(before)))
        settings = json.loads(bytes(content.pop("settings").tolist()))
        settings.update({"ranks": ranks, "course": course})
        content["settings"] = torch.tensor(list(json.dumps(settings).encode()), dtype=torch.uint8)
        torch.save(tuple(content.items()), self.path(after))

    def trained(self, ranks, *arguments):
        done = train(*arguments, ranks=ranks, environment=SAME_BITS)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def check_same_training(self, start, batch, *arguments):
        """That of the survivors is, bit for bit, one of as many ranks that starts with the state of the lost one's last step."""
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
        self.assertEqual(len(found), len(expected))
        own = {loss["step"] - back for loss in losses for back in (0, 1, 2, 3)}  # means of the turn that broke off lack a rank
        for step, (ours, theirs) in enumerate(zip(found, expected, strict=True), start=1):
            self.assertTrue(math.isfinite(ours))
            if step not in own:
                self.assertEqual(ours, theirs, f"loss of step {step}; ranks were lost at {losses}")
        ours, theirs = dict(torch.load(self.path("survivors.pt"))), dict(torch.load(self.path("part.pt")))
        for key, tensor in theirs.items():
            if "/parameter/" in key or "/optimizer/" in key:
                self.assertTrue(torch.equal(ours[key], tensor), key)

    def test_four_ranks_lose_two(self):
        chance = random.Random(SEED)
        print(f"SHOAL_TEST_SEED={SEED}", flush=True)
        steps = 48
        for overlap in ("next_forward", "backward"):
            with self.subTest(overlap=overlap):
                arguments = ["--overlap", overlap, *SMALL]
                training = Training(4, "--steps", str(steps), "--json", self.path("survivors.json"), "--log", self.path("log"),
                                    "--checkpoint", self.path("survivors.pt"), *arguments)
                victims = [chance.choice([1, 2, 3]), 0]  # rank 0 speaks, writes, and served the others at the start
                chance.shuffle(victims)
                for victim, moments in zip(victims, (range(4, 16), range(20, 32)), strict=True):
                    training.wait_for_step(chance.choice(moments))
                    time.sleep(0.2 * chance.random())
                    training.kill(victim)
                    training.wait_for(f"rank {victim} is lost: ")
                self.check_end(training, victims)
                document = self.read("survivors.json")
                self.assertEqual([loss["ranks"] for loss in document["losses"]], [[victim] for victim in victims])
                self.assertEqual([loss["left"] for loss in document["losses"]], [3, 2])
                self.assertTrue(all(0 <= loss["seconds"] < 20 for loss in document["losses"]), document["losses"])
                self.assertEqual({one["rank"] for one in document["replicas"]}, {0, 1, 2, 3} - set(victims))
                self.assertEqual(len({one["parameters"] for one in document["replicas"]}), 1)
                self.assertEqual(len(document["results"][0]["step_loss"]), steps)
                with open(self.path("log"), encoding="utf-8") as file:
                    events = [json.loads(line)["event"] for line in file]
                self.assertEqual(events.count("loss"), 2)
                if overlap == "next_forward":
                    self.check_same_training(4, 4, *arguments)

    def test_one_rank_goes_on_alone_through_the_epochs(self):
        for name in ("data_batch_1.bin", "test_batch.bin"):  # 48 images: with 2 ranks 6 steps an epoch, with one 12
            with open(self.path(name), "wb") as file:
                file.write(b"".join(bytes([image % 10]) + bytes([5 * image]) * 3072 for image in range(48)))
        arguments = [*TINY, "--dataset", "cifar10", "--data", self.folder.name, "--evaluate", "--optimizer", "adam", "--schedule", "cosine"]
        training = Training(2, "--epochs", "8", "--json", self.path("survivors.json"), "--checkpoint", self.path("survivors.pt"), *arguments)
        training.wait_for("epoch 3/8")
        training.kill(0)
        self.check_end(training, [0])
        document = self.read("survivors.json")
        (loss,) = document["losses"]
        self.assertEqual(loss["left"], 1)
        self.assertEqual([row["epoch"] for row in document["results"]], list(range(1, 9)))
        for row in document["results"]:
            made = len(row["step_loss"])
            with_both = min(max(loss["step"] - 6 * (row["epoch"] - 1), 0), 6)
            self.assertEqual(made, with_both + 2 * (6 - with_both), row)  # the images of an epoch, each once
            self.assertTrue(0 <= row["accuracy"] <= 1)
        made = sum(len(row["step_loss"]) for row in document["results"])
        # A checkpoint knows where in the images such a training is; one rank alone would have had 96 steps.
        self.assertLess(made, 96)
        done = train(*arguments, "--epochs", "8", "--resume", self.path("survivors.pt"))
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn(f"has made {made} steps already", done.stderr)

    def test_what_cannot_survive_is_refused(self):
        for backend in ("gloo", "shoal,gloo", "shoal+backward,shoal+next_forward"):
            done = train("--backend", backend, "--on-failure", "shrink", "--steps", "1", *SMALL)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn("--on-failure shrink: only shoal can", done.stderr)

    def test_by_default_a_lost_rank_ends_the_training(self):
        process = subprocess.Popen([*RUN, "2", "--keep-going", "--", TRAIN, "--epochs", "100", *SMALL], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        for line in process.stdout:
            if "step 4/" in line:
                break
        os.kill(next(child for helper in children_of(process.pid) for child in children_of(helper) if rank_of(child) == 1), signal.SIGKILL)
        _, complaints = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGKILL, complaints)
        self.assertIn("rank 0 exited with status 1", complaints)
        self.assertIn("rank 1", complaints.split("shoal_train: ")[1])


if __name__ == "__main__":
    cases.main()
