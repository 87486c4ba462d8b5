"""shoal_train: results, agreement of backends, bad input, interruption."""
import json
import os
import pickletools
import re
import shutil
import signal
import subprocess
import time
import xml.etree.ElementTree
import zipfile

import numpy
import pytest
import torch

import reference_models
import support

TRAIN = os.path.join(support.BUILD, "bin", "shoal_train")
RUN = [os.path.join(support.BUILD, "bin", "shoal"), "run", "-n"]
TINY = ["--model", "shufflenet_v2_x0.5", "--batch", "4", "--block", "2", "--threads", "1"]
SMALL = ["--dataset", "synthetic", *TINY]
SHORT = ["--dataset", "synthetic", "--batch", "4", "--block", "2", "--threads", "1"]


# As in the papers, of the networks for CIFAR; the numbers of the other networks come from the reference.
PARAMETERS = {"vgg16": 14728266, "resnet18": 11173962, "resnet50": 23520842, "mobilenet_v2": 2296922, "shufflenet_v2_x0.5": 352042,
              "shufflenet_v2_x1": 1263854, "shufflenet_v2_x1.5": 2488874, "shufflenet_v2_x2": 5338026, "densenet121": 6956298}


def train(*arguments, ranks=1, environment=None, timeout=240):
    command = (RUN + [str(ranks), "--"] if ranks > 1 else []) + [TRAIN, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **(environment or {})})


def traffic_bytes(row, steps, parameters):
    """Of the measured steps: gradients of four bytes each and, where averages overlap with the next forward, the fraction of rank 0."""
    return steps * (4 * parameters + (8 if row["overlap"] == "next_forward" else 0))


def children_of(process):
    with open(f"/proc/{process}/task/{process}/children", encoding="utf-8") as file:
        return [int(child) for child in file.read().split()]


class TestTrain:
    @pytest.fixture(autouse=True)
    def new_folder(self, folder):
        self.folder = folder

    def path(self, name):
        return os.path.join(self.folder, name)

    def rows(self, name):
        with open(self.path(name), encoding="utf-8") as opened:
            return json.load(opened)["results"]

    def refused(self, pattern, *arguments, environment=None):
        """shoal_train fails with a short message that matches."""
        done = train(*arguments, environment=environment)
        assert done.returncode == 1, done.stdout + done.stderr
        assert re.search(pattern, done.stderr), done.stderr
        assert len(done.stderr.strip().splitlines()) <= 4, done.stderr

    def test_models_are_listed(self):
        done = train("models")
        assert done.returncode == 0
        listed = {line.split()[0]: [int(cell.replace(",", "")) for cell in line.split()[1:4]] for line in done.stdout.splitlines()[1:]}
        assert {name: listed[name][0] for name in PARAMETERS} == PARAMETERS
        for name, (parameters, tensors, bytes_) in listed.items():
            values = list(reference_models.make(name, 3, 10).parameters())
            assert (parameters, tensors, bytes_) == (sum(value.numel() for value in values), len(values), 4 * parameters), name

    @pytest.mark.parametrize("ranks", (pytest.param(1, marks=pytest.mark.long), 2))
    def test_backends_have_equal_losses(self, ranks):
        file = self.path(f"{ranks}.json")
        done = train("--backend", "shoal,gloo", "--steps", "4", "--json", file, *SMALL, ranks=ranks)
        assert done.returncode == 0, done.stdout + done.stderr
        rows = self.rows(file)
        assert [row["backend"] for row in rows] == ["shoal", "gloo"]
        assert [row["overlap"] for row in rows] == ["next_forward", "backward"]
        for row in rows:
            assert row["ranks"] == ranks
            assert len(row["step_loss"]) == 4
            assert row["images_per_s"] > 0
            assert row["bytes"] == traffic_bytes(row, 2, 352042)
        for ours, theirs in zip(rows[0]["step_loss"], rows[1]["step_loss"]):
            assert ours == pytest.approx(theirs, abs=1e-4 * abs(theirs))

    @pytest.mark.long
    def test_overlaps_have_equal_losses(self):
        file = self.path("overlaps.json")
        backends = ["gloo+next_forward", "shoal+backward", "shoal"]
        done = train("--backend", ",".join(backends), "--steps", "6", "--evaluate", "--json", file, *SHORT, ranks=2)
        assert done.returncode == 0, done.stdout + done.stderr
        rows = self.rows(file)
        assert [f"{row['backend']}+{row['overlap']}" for row in rows] == backends[:2] + ["shoal+next_forward"]
        assert "shoal+next_forward" in done.stdout
        for row in rows:
            assert row["bytes"] == traffic_bytes(row, 4, 11173962), "all of them finished"
            assert row["step_loss"] == rows[0]["step_loss"]  # the sum of two operands does not depend on their order
            assert row["accuracy"] == rows[0]["accuracy"]

    @pytest.mark.long
    def test_accuracy_is_measured_on_request(self):
        file = self.path("results.json")
        done = train("--steps", "2", "--evaluate", "--json", file, *SHORT)
        assert done.returncode == 0, done.stdout + done.stderr
        accuracy = self.rows(file)[0]["accuracy"]
        assert 0 <= accuracy <= 1, accuracy

    def write_images(self, count, label_of, pixels_of):
        """Files of CIFAR-10; label_of(file, image) and pixels_of(file, image) make the images."""
        for name, images in (("data_batch_1.bin", count), ("test_batch.bin", 50)):
            with open(self.path(name), "wb") as file:
                for image in range(images):
                    file.write(bytes([label_of(name, image)]) + pixels_of(name, image))

    @pytest.mark.long
    def test_accuracy_does_not_depend_on_the_ranks(self):
        # All training images are equal, so that 1, 2 and 4 ranks make the same steps bit for bit: halves and quarters of sums are exact.
        random = numpy.random.default_rng(5)
        one = random.integers(0, 256, 3072, dtype=numpy.uint8).tobytes()
        self.write_images(96, lambda name, image: 3 if name.startswith("data") or image % 3 else 4,
                          lambda name, _: one if name.startswith("data") else random.integers(0, 256, 3072, dtype=numpy.uint8).tobytes())
        accuracies, weights = [], []
        for ranks in (1, 2, 4):  # 50 test images are no multiple of 4
            file = self.path(f"{ranks}.json")
            done = train(*TINY, "--data", self.folder, "--no-augment", "--steps", "4", "--evaluate", "--json", file, "--checkpoint",
                         self.path("weights.pt"), ranks=ranks)
            assert done.returncode == 0, done.stdout + done.stderr
            accuracies.append(self.rows(file)[0]["accuracy"])
            weights.append(dict(torch.load(self.path("weights.pt"))))
        for other in weights[1:]:
            for name, value in weights[0].items():
                if name.split("/")[1:2] in (["parameter"], ["buffer"]):
                    assert torch.equal(other[name], value), name
        assert accuracies == [accuracies[0]] * 3
        assert 50 * accuracies[0] == pytest.approx(round(50 * accuracies[0]), abs=1e-9), "every image counts once"
        assert 0 < accuracies[0] < 1, accuracies

    def test_results_name_data_device_and_machine(self):
        file = self.path("results.json")
        self.trained("--steps", "3", "--json", file)
        with open(file, encoding="utf-8") as opened:
            found = json.load(opened)
        data = found["data"]
        assert (data["kind"], data["train_images"], data["test_images"]) == ("generated", 5000, 1000)
        assert re.search(r"\b5,000\b.*\b1,000\b", data["words"]), data
        (row,) = found["results"]
        assert (row["device"], row["threads"], row["epoch_steps"]) == ("cpu", 1, 1250)
        assert re.search(r"^\d+\.\d+\.\d+$", found["machine"]["shoal"]), found["machine"]["shoal"]
        assert torch.__version__.startswith(found["machine"]["torch"]), found["machine"]
        assert re.search(r"\d+\.\d+", found["machine"]["compiler"]), found["machine"]["compiler"]
        if found["machine"]["open_mpi"] is not None:
            assert re.search(r"MPI.*\d+\.\d+", found["machine"]["open_mpi"]), found["machine"]["open_mpi"]

    def changed_row(self, name, changed_name, **fields):
        with open(self.path(name), encoding="utf-8") as opened:
            document = json.load(opened)
        document["results"][0].update(fields)
        with open(self.path(changed_name), "w", encoding="utf-8") as opened:
            json.dump(document, opened)

    @pytest.mark.long
    def test_speed_ups_use_one_rank_with_equal_threads(self):
        alone, together = self.path("alone.json"), self.path("together.json")
        self.trained("--steps", "6", "--json", alone)
        done = self.trained("--backend", "shoal,gloo", "--steps", "6", "--json", together, "--alone", alone, ranks=2)
        base = self.rows(alone)[0]["images_per_s"]
        for row in self.rows(together):
            assert row["speedup_vs_1"] == pytest.approx(row["images_per_s"] / base, abs=1e-7)
            assert f" {row['speedup_vs_1']:.2f} " in done.stdout
        done = train("--steps", "6", "--json", together, "--alone", alone, *SMALL[:-1], "2")  # threads
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"--alone {alone}: " in done.stderr
        assert self.rows(together)[0]["speedup_vs_1"] is None
        self.refused("missing.json: ", "--alone", self.path("missing.json"), "--steps", "3", *SMALL)
        self.refused(f"{os.path.basename(__file__)}: ", "--alone", __file__, "--steps", "3", *SMALL)
        self.refused(f"{self.folder}: ", "--alone", self.folder, "--steps", "3", *SMALL)
        self.changed_row("alone.json", "changed.json", ranks="one")
        self.refused('changed.json: row 1 .*"ranks".* string', "--alone", self.path("changed.json"), "--steps", "3", *SMALL)

    @pytest.mark.long
    def test_a_report_finds_the_run_of_one_rank(self):
        self.trained("--steps", "6", "--json", self.path("alone.json"))
        self.trained("--steps", "6", "--json", self.path("together.json"), ranks=2)
        done = train("report", self.path("alone.json"), self.path("together.json"), "--out", self.path("report"))
        assert done.returncode == 0, done.stdout + done.stderr
        ratio = self.rows("together.json")[0]["images_per_s"] / self.rows("alone.json")[0]["images_per_s"]
        with open(os.path.join(self.path("report"), "index.html"), encoding="utf-8") as file:
            page = file.read()
        assert re.search("<th>[^<]*one rank</th>", page)
        assert f'<td class="number">{ratio:.2f}</td>' in page
        assert re.search(r"\b5,000\b.*\b1,000\b", page)  # images for training and testing
        assert "compiler: " in page
        pictures = os.listdir(self.path("report"))
        for name in ("speedup.svg", "epoch-time.svg", "utilisation-1.svg", "utilisation-2.svg"):
            assert name in pictures
        with open(os.path.join(self.path("report"), "epoch-time.svg"), encoding="utf-8") as file:
            picture = file.read()
        assert ">~" in picture  # projected, since no whole epoch was measured

    @pytest.mark.long
    def test_a_plot_is_drawn_of_a_run(self):
        alone, plot = self.path("alone.json"), self.path("plot.svg")
        self.trained("--steps", "6", "--json", alone)
        self.trained("--backend", "shoal,gloo", "--steps", "6", "--alone", alone, "--plot", plot, ranks=2)
        text = " ".join(each for each in xml.etree.ElementTree.parse(plot).getroot().itertext() if each.strip())
        for label in ("images per second", "1 rank", "shoal (next forward)", "gloo (backward)", "shufflenet_v2_x0.5"):
            assert label in text
        assert sorted(os.listdir(self.folder)) == ["alone.json", "plot.svg"]  # and nothing else
        self.refused("/no/such/folder/plot.svg", "--plot", "/no/such/folder/plot.svg", "--steps", "3", *SMALL)

    @pytest.mark.parametrize("option, value", (("--model", "vgg"), ("--backend", "smoke"), ("--backend", "shoal+sideways"),
                                               ("--overlap", "sideways"), ("--device", "abacus"), ("--batch", "-1"), ("--steps", "many")))
    def test_bad_arguments_are_refused(self, option, value):
        self.refused('"vgg"' if option == "--model" else option, option, value)

    def test_bad_data_is_refused(self):
        self.refused(f"{self.folder}: .*cifar10", "--data", self.folder)
        self.refused(f"{self.folder}: .*fashion_mnist", "--dataset", "fashion_mnist", environment={"SHOAL_DATA_DIR": self.folder})
        for name in ("data_batch_1.bin", "test_batch.bin"):
            with open(self.path(name), "wb") as file:
                file.write(bytes(3073))
        with open(self.path("data_batch_1.bin"), "ab") as file:
            file.write(bytes(17))
        self.refused(r"data_batch_1.bin: 3090 .*\b3073\b", "--data", self.folder)
        with open(self.path("data_batch_1.bin"), "wb") as file:
            file.write(b"\xff" + bytes(3072))
        self.refused(r"data_batch_1.bin: .*\b0\b.*\b255\b", "--data", self.folder)
        with open(self.path("train-images-idx3-ubyte.gz"), "wb") as file:
            file.write(b"\x1f\x8b\x08\x00")
        self.refused("train-images-idx3-ubyte.gz", "--dataset", "fashion_mnist", "--data", self.folder)

    def trained(self, *arguments, ranks=1, environment=None):
        done = train(*arguments, *SMALL, ranks=ranks, environment=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    @pytest.mark.parametrize("ranks, backends, more", (
        (1, "shoal", "--optimizer adadelta --schedule cosine"),
        pytest.param(2, "shoal,gloo", "--optimizer adam --schedule step --epochs 3", marks=pytest.mark.long),
        pytest.param(3, "shoal", "--optimizer sgd", marks=pytest.mark.long)))
    def test_a_resumed_training_has_the_same_bits(self, ranks, backends, more):
        def trained(*options):
            # Otherwise the second run, which measures the links anew, might choose an algorithm that adds in another order.
            self.trained("--backend", backends, *more.split(), *options, ranks=ranks, environment={"SHOAL_NUMERICS": "repeatable"})

        trained("--steps", "5", "--json", self.path("whole.json"), "--checkpoint", self.path("whole.pt"))
        trained("--steps", "3", "--checkpoint", self.path("half.pt"))
        trained("--steps", "5", "--json", self.path("rest.json"), "--checkpoint", self.path("rest.pt"), "--resume", self.path("half.pt"))
        for whole, rest in zip(self.rows("whole.json"), self.rows("rest.json"), strict=True):
            assert rest["step_loss"] == whole["step_loss"][3:]
        expected, found = dict(torch.load(self.path("whole.pt"))), dict(torch.load(self.path("rest.pt")))
        assert set(found) == set(expected)
        names = {key.split("/")[1] for key in expected if "/" in key}
        assert names == {"parameter", "buffer", "optimizer", "step"}
        for key, tensor in expected.items():
            assert torch.equal(found[key], tensor), key

    @pytest.mark.long
    def test_a_resumed_training_continues_in_the_next_epoch(self):
        for name in ("data_batch_1.bin", "test_batch.bin"):  # 40 images: 10 steps an epoch
            with open(self.path(name), "wb") as file:
                file.write(b"".join(bytes([image % 10]) + bytes([image]) * 3072 for image in range(40)))
        of_two = [*TINY, "--dataset", "cifar10", "--data", self.folder, "--epochs", "2", "--evaluate"]
        for more in (["--steps", "10", "--checkpoint", self.path("one.pt")],
                     ["--steps", "13", "--resume", self.path("one.pt"), "--json", self.path("two.json")]):
            done = train(*of_two, *more)
            assert done.returncode == 0, done.stdout + done.stderr
        (row,) = self.rows("two.json")
        assert row["epoch"] == 2
        assert len(row["step_loss"]) == 3

    def test_checkpoints_of_other_trainings_are_refused(self):
        self.trained("--steps", "1", "--checkpoint", self.path("good.pt"))
        small = ["--steps", "2", *SMALL]
        resume = ("--resume", self.path("good.pt"))
        self.refused("missing.pt: ", "--resume", self.path("missing.pt"), *small)
        self.refused(r"checkpoint\b.*\bseed 1\b.*\b2\b", *resume, "--seed", "2", *small)
        self.refused('checkpoint .*optimizer "sgd".*"adam"', *resume, "--optimizer", "adam", "--lr", "0.01", *small)
        self.refused('checkpoint .*schedule "constant".*"cosine"', *resume, "--schedule", "cosine", *small)
        self.refused(r"good.pt: .*\bgloo\b", *resume, "--backend", "gloo", *small)
        self.refused(r"good.pt: .*\b1 steps\b", *resume, "--steps", "1", *SMALL)
        with open(self.path("good.pt"), "rb") as file:
            content = file.read()
        for name, damaged in (("empty", b""), ("junk", b"junk" * 100), ("half", content[:len(content) // 2])):
            with open(self.path(name), "wb") as file:
                file.write(damaged)
            self.refused(f"/{name}: .*checkpoint", "--resume", self.path(name), *small)
        self.refused(f"{self.folder}: .*file", "--resume", self.folder, *small)
        self.refused("/no/such/folder", "--checkpoint", "/no/such/folder/c.pt", *small)

    def damaged(self, content, settings=None, **tensors):
        """Options that resume the checkpoint `content` with other settings or tensors."""
        changed = dict(content)
        if settings:
            known = json.loads(bytes(content["settings"].tolist()))
            changed["settings"] = torch.tensor(list(json.dumps({**known, **settings}).encode()), dtype=torch.uint8)
        for name, tensor in tensors.items():
            changed["shoal+next_forward/" + name] = tensor
        torch.save(tuple(changed.items()), self.path("damaged.pt"))
        return "--resume", self.path("damaged.pt"), "--optimizer", "adam", "--lr", "0.01", "--steps", "2"

    @pytest.mark.long
    def test_checkpoints_with_impossible_numbers_are_refused(self):
        self.trained("--optimizer", "adam", "--lr", "0.01", "--steps", "1", "--checkpoint", self.path("good.pt"))
        content = dict(torch.load(self.path("good.pt")))
        self.trained(*self.damaged(content))  # without a change it is good
        for course, expected in (("1", ""), ([1, 0, 0], ""), ([0, 0, 0, 0], r"\branks\b.* 0\b"), ([1, 0, -5, 0], r"\bstep\b.* -5\b.*\b1\b"),
                                 ([1, 0, 2**63, 0], ""), ([1, 2**60, 0, 0], rf"\b{2**60}\b"), ([1, 0, 0, 2**60], rf"\bimages\b.*\b{2**60}\b")):
            self.refused(f'damaged.pt: .*"course".*{expected}', *self.damaged(content, {"course": course}), *SMALL)
        average = content["shoal+next_forward/optimizer/head.bias/exp_avg"]
        for name, tensor, expected in (("step", torch.tensor(-1), r"\bstep\b.* -1\b"), ("step", torch.tensor(2**62), rf"\bstep\b.*\b{2**62}\b"),
                                       ("step", torch.tensor(1.5), r"\bstep\b"),
                                       ("parameter/head.bias", torch.zeros(10, dtype=torch.int32), "parameter/head.bias"),
                                       ("optimizer/head.bias/step", torch.tensor(0), r"\b0 steps\b"),
                                       ("optimizer/head.bias/exp_avg", average[:1], "exp_avg.*head.bias"),
                                       ("optimizer/head.bias/exp_avg", average.double(), "exp_avg.*head.bias")):
            self.refused(f"damaged.pt: .*{expected}", *self.damaged(content, **{name: tensor}), *SMALL)

    def test_all_ranks_refuse_a_checkpoint_with_one_message(self):
        self.trained("--optimizer", "adam", "--lr", "0.01", "--steps", "1", "--checkpoint", self.path("good.pt"), ranks=2)
        resume = self.damaged(dict(torch.load(self.path("good.pt"))), {"course": [2, 0, 7, 0]})
        done = train(*resume, *SMALL, ranks=2)
        assert done.returncode == 1, done.stdout + done.stderr
        assert len(re.findall(r'damaged.pt: .*"course".*\bstep\b.* 7\b.*\b1\b', done.stderr)) == 2, done.stderr

    def test_a_checkpoint_with_truncated_tensors_is_refused(self):
        self.trained("--steps", "1", "--checkpoint", self.path("good.pt"))
        for more in (1, 2**31 - 300):
            with zipfile.ZipFile(self.path("good.pt")) as good, zipfile.ZipFile(self.path("long.pt"), "w") as long:
                for name in good.namelist():
                    data = good.read(name)
                    if name.endswith("data.pkl"):  # the first tensor is one of bytes; the second number of bytes is its size
                        at = [place for op, _, place in pickletools.genops(data) if op.name in ("BININT1", "BININT2")][:3]
                        size = 2 if data[at[2]:at[2] + 1] == b"K" else 3
                        length = int.from_bytes(data[at[2] + 1:at[2] + size], "little")
                        data = data[:at[2]] + b"J" + (length + more).to_bytes(4, "little") + data[at[2] + size:]
                    long.writestr(name, data)
            self.refused('long.pt: .*"settings"', "--resume", self.path("long.pt"), "--steps", "2", *SMALL)

    @pytest.mark.long
    def test_bfloat16_has_nearly_equal_losses(self):
        losses = {}
        for precision in ("fp32", "bf16"):
            self.trained("--steps", "3", "--precision", precision, "--json", self.path("results.json"))
            losses[precision] = self.rows("results.json")[0]["step_loss"]
        for exact, rough in zip(losses["fp32"], losses["bf16"], strict=True):
            assert exact == pytest.approx(rough, abs=0.1 * exact)
        assert losses["fp32"] != losses["bf16"]

    def test_the_log_has_a_line_for_every_turn_and_epoch(self):
        self.trained("--steps", "6", "--schedule", "cosine", "--log", self.path("log"), "--json", self.path("results.json"))
        with open(self.path("log"), encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        assert [(line["event"], line["step"]) for line in lines] == [("turn", 2), ("turn", 4), ("turn", 6), ("epoch", 6)]
        rates = [line["learning_rate"] for line in lines[:3]]
        assert rates == sorted(rates, reverse=True)
        assert rates[-1] < 0.01
        (row,) = self.rows("results.json")
        assert lines[2]["loss"] == row["step_loss"][-1]

    def test_training_continues_with_a_full_disk(self):
        done = train("--steps", "6", "--log", "/dev/full", "--trace", "/dev/full", "--json", self.path("results.json"), *SMALL, ranks=2)
        for lost in ("log", "trace"):
            reports = re.findall(rf"(?m)^shoal_train: .*/dev/full: No space left on device.*\b{lost}\b", done.stderr)
            assert len(reports) == 1, done.stderr
        assert done.returncode != 0
        (row,) = self.rows("results.json")
        assert len(row["step_loss"]) == 6

    def test_an_unwritable_log_ends_all_ranks(self):
        done = train("--steps", "6", "--log", "/no/such/folder/log", *SMALL, ranks=2)
        assert done.returncode == 1, done.stderr
        assert re.search("(?m)^shoal_train: .*/no/such/folder/log: No such file or directory", done.stderr), done.stderr
        assert "what():" not in done.stderr
        assert "frame #" not in done.stderr

    @pytest.mark.long
    def test_a_report_needs_no_other_files(self):
        self.trained("--steps", "6", "--evaluate", "--json", self.path("results.json"))
        out = self.path("report")
        done = train("report", self.path("results.json"), "--out", out)
        assert done.returncode == 0, done.stdout + done.stderr
        with open(os.path.join(out, "index.html"), encoding="utf-8") as file:
            page = file.read()
        assert "shufflenet_v2_x0.5" in page
        assert page.count("<svg") >= 3
        assert not re.search(r'(src|href)="http|<script|url\(http', page), page
        pictures = [name for name in os.listdir(out) if name.endswith(".svg")]
        assert "throughput.svg" in pictures
        for name in pictures:
            xml.etree.ElementTree.parse(os.path.join(out, name))
        with open(self.path("junk.json"), "w", encoding="utf-8") as file:
            file.write("{}")
        self.refused('junk.json: .*"results"', "report", self.path("junk.json"))
        for fields, expected in (({"ranks": "1"}, '"ranks" of row 1 .*whole number'), ({"images_per_s": "40"}, '"images_per_s" of row 1 .*number'),
                                 ({"model": None}, '"model" of row 1 .*text')):
            self.changed_row("results.json", "changed.json", **fields)
            self.refused(f"changed.json: .*{expected}", "report", self.path("changed.json"))
        for rows, expected in (("[7]", "row 1 "), ("[{}]", '"backend"'), ("7", '"results"'), ('[{"step_loss": 1}]', '"backend"')):
            with open(self.path("junk.json"), "w", encoding="utf-8") as file:
                file.write('{"results": %s}' % rows)
            self.refused(f"junk.json: .*{expected}", "report", self.path("junk.json"))
        self.refused("missing.json: ", "report", self.path("missing.json"))

    @pytest.mark.long
    def test_a_trace_shows_every_rank_and_layer(self):
        self.trained("--backend", "shoal,gloo", "--steps", "6", "--trace", self.path("trace.json"), "--json", self.path("results.json"), ranks=2)
        with open(self.path("trace.json"), encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        assert sorted(names.values()) == sorted(f"{backend} rank {rank}" for backend in ("shoal+next_forward", "gloo+backward") for rank in (0, 1))
        for process in names:
            own = [event for event in events if event["pid"] == process and event["ph"] == "X"]
            training = sorted((event for event in own if event["tid"] == 0), key=lambda event: event["ts"])
            shown = {event["name"] for event in training}
            for name in ("load", "forward stem.conv", "backward stem.conv", "forward head", "backward units.3.branch.first.norm"):
                assert name in shown
            for one, other in zip(training, training[1:]):  # one after the other, without gaps
                assert one["ts"] + one["dur"] == pytest.approx(other["ts"], abs=1)
            averaged = [event for event in own if event["cat"] == "gradients"]
            assert averaged
            assert all(event["tid"] > 0 for event in averaged)
            stages = [event for event in own if event["cat"] in ("node reduce", "wire", "node gather")]
            if names[process].startswith("gloo"):
                assert stages == []
                continue
            assert {event["cat"] for event in stages} == {"node reduce", "node gather"}  # both ranks are of one host
            names_ = {event["name"].split(" ", 1)[1] for event in own if event["cat"] in ("gradients", "blocking")}
            numbers = sorted(int(name.split()[1].rstrip(",")) for name in names_ if name.startswith("bucket "))
            assert sorted(set(numbers)) == list(range(1, numbers[-1] + 1))
            for event in stages:
                assert event["name"].removeprefix(event["cat"] + " ") in names_  # the bucket whose stage it is
                assert event["args"]["bytes"] > 0
        done = train("report", self.path("results.json"), "--trace", self.path("trace.json"), "--out", self.path("report"))
        assert done.returncode == 0, done.stdout + done.stderr
        assert "timeline-1.svg" in os.listdir(self.path("report"))
        for junk, expected in (("[]", ""), ('{"traceEvents": {}}', '"traceEvents".*list'), ('{"traceEvents": [7]}', "event 1 "),
                               ('{"traceEvents": [{"ph": "X", "name": "a", "pid": 1, "tid": 0, "cat": "load", "ts": "0", "dur": 1}]}',
                                '"ts" of event 1 .*number')):
            with open(self.path("junk.json"), "w", encoding="utf-8") as file:
                file.write(junk)
            self.refused(f"junk.json: .*{expected}", "report", self.path("results.json"), "--trace", self.path("junk.json"))
        self.refused(r"--trace: 2 steps\b", "--trace", self.path("t.json"), "--steps", "2", *SMALL)

    @pytest.mark.parametrize("ranks", (1, 2))
    @pytest.mark.long
    def test_a_step_of_several_batches_makes_one_average(self, ranks):
        still = ["--lr", "0", "--weight-decay", "0"]  # weights and losses are those of the start in every step
        self.trained("--steps", "6", *still, "--json", self.path("single.json"), ranks=ranks)
        self.trained("--steps", "2", *still, "--accumulate", "3", "--json", self.path("triple.json"), ranks=ranks)
        single, triple = self.rows("single.json")[0]["step_loss"], self.rows("triple.json")[0]["step_loss"]
        for step in (0, 1):
            assert triple[step] == pytest.approx(sum(single[3 * step:3 * step + 3]) / 3, abs=1e-5)
        self.trained("--steps", "4", "--accumulate", "3", "--backend", "shoal,gloo", "--json", self.path("both.json"), ranks=ranks)
        shoal, gloo = self.rows("both.json")
        assert shoal["step_loss"] == gloo["step_loss"]
        assert shoal["step_loss"][1] != pytest.approx(triple[1], abs=1e-5)  # it learns
        assert shoal["bytes"] == traffic_bytes(shoal, 2, 352042)  # of steps of three batches

    @pytest.mark.long
    def test_mpi_has_equal_losses(self):
        if shutil.which("mpirun") is None:
            pytest.skip("no mpirun here")
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", TRAIN, "--backend", "shoal,mpi,gloo", "--steps", "4",
                   "--json", self.path("mpi.json"), *SMALL]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        if "without MPI" in done.stderr:
            pytest.skip("shoal_train was built without MPI")
        assert done.returncode == 0, done.stdout + done.stderr
        rows = self.rows("mpi.json")
        assert [(row["backend"], row["overlap"]) for row in rows] == [("shoal", "next_forward"), ("mpi", "backward"), ("gloo", "backward")]
        for row in rows:
            assert row["step_loss"] == rows[0]["step_loss"]  # the sum of two operands does not depend on their order
            assert row["bytes"] == traffic_bytes(row, 2, 352042), "of every backend"
            assert row["images_per_s"] > 0

    def test_mpi_needs_mpirun(self):
        done = train("--backend", "mpi", "--steps", "1", *SMALL, ranks=2)
        assert done.returncode == 1, done.stdout + done.stderr
        assert re.search("mpirun|without MPI", done.stderr), done.stderr

    def test_cpu_and_gpu_backends_are_refused_together(self):
        self.refused("--backend nccl: gloo .*--backend shoal,nccl", "--backend", "shoal,gloo,nccl", "--steps", "1", *SMALL)
        self.refused("--device cuda: gloo ", "--backend", "shoal,gloo", "--device", "cuda", "--steps", "1", *SMALL)
        self.refused("--device cpu: nccl ", "--backend", "shoal,nccl", "--device", "cpu", "--steps", "1", *SMALL)
        self.refused("--on-failure shrink", "--on-failure", "shrink", "--device", "cuda", "--steps", "1", *SMALL)

    @pytest.mark.parametrize("options", ("--backend nccl", "--backend shoal,nccl", "--backend shoal --device cuda"))
    def test_a_missing_gpu_is_reported(self, options):
        if os.path.exists("/dev/nvidiactl"):
            pytest.skip("there is a GPU here")
        self.refused("GPU.*--device cpu", *options.split(), "--steps", "1", *SMALL)

    def test_auto_takes_the_cpu_without_a_gpu(self):
        if os.path.exists("/dev/nvidiactl"):
            pytest.skip("there is a GPU here")
        self.trained("--device", "auto", "--steps", "3", "--json", self.path("results.json"), ranks=2)
        assert {row["device"] for row in self.rows("results.json")} == {"cpu"}

    def test_shoal_and_nccl_take_turns_on_a_gpu(self):
        if not os.path.exists("/dev/nvidiactl"):
            pytest.skip("no GPU here")
        self.trained("--backend", "shoal,nccl", "--device", "cuda", "--steps", "6", "--evaluate", "--json", self.path("results.json"))
        shoal, nccl = self.rows("results.json")
        assert {row["device"] for row in (shoal, nccl)} == {"cuda"}
        for ours, theirs in zip(shoal["step_loss"], nccl["step_loss"], strict=True):
            assert ours == pytest.approx(theirs, abs=1e-3 * abs(theirs))

    @pytest.mark.long
    def test_the_time_limit_ends_all_backends_together(self):
        done = train("--backend", "shoal,gloo", "--epochs", "1000", "--seconds", "0.1", "--json", self.path("results.json"), *SMALL, ranks=2)
        assert done.returncode == 0, done.stdout + done.stderr
        shoal, gloo = self.rows("results.json")
        assert len(shoal["step_loss"]) == len(gloo["step_loss"])
        assert len(shoal["step_loss"]) < 1000

    def test_gpu_use_is_measured_or_a_reason_is_given(self):
        self.trained("--steps", "3", "--json", self.path("results.json"))
        with open(self.path("results.json"), encoding="utf-8") as file:
            document = json.load(file)
        if document["results"][0]["gpu_percent"] is None:
            assert re.search("NVIDIA|NVML|libnvidia", document["machine"]["gpu_utilisation"]), document["machine"]

    def test_a_profile_is_partitioned(self):
        profile = self.path("profile.json")
        done = train("--profile-out", profile, *SMALL, ranks=2)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("wrote the costs of 19 units") == 1
        with open(profile, encoding="utf-8") as file:
            written = json.load(file)
        assert (written["model"], written["microbatch"], written["threads"], written["channels"]) == ("shufflenet_v2_x0.5", 4, 1, 3)
        assert written["torch"] == torch.__version__.split("+")[0] and written["machine"] and written["classes"] == 10
        assert sum(unit["parameter_bytes"] for unit in written["units"]) == 4 * 352042
        for unit in written["units"]:
            assert unit["forward_us"] > 0 and unit["backward_us"] > 0 and unit["stash_bytes"] >= unit["output_bytes"], unit
        command = [RUN[0], "partition", profile, "--partitions", "2", "--microbatches", "8", "--optimize", "speed", "--json"]
        cut = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        assert cut["cut_units"][0] in [unit["name"] for unit in written["units"]]

    def test_a_profile_that_cannot_be_made_is_refused(self):
        self.refused("/no/such/folder", "--profile-out", "/no/such/folder/p.json", *SMALL)
        self.refused("fp32 only", "--profile-out", self.path("p.json"), "--precision", "bf16", *SMALL)

    def test_unwritable_results_are_reported(self):
        self.refused("/no/such/folder", "--steps", "1", "--json", "/no/such/folder/r.json", *SHORT)

    def test_a_missing_rank_is_reported(self):
        environment = {"SHOAL_RANK": "0", "SHOAL_SIZE": "2", "SHOAL_MASTER_ADDR": "127.0.0.1",
                       "SHOAL_MASTER_PORT": str(support.unused_port()), "SHOAL_JOB_ID": "lonely"}
        self.refused(r"\brank 1\b", "--timeout", "2", *SHORT, environment=environment)

    @pytest.mark.long
    def test_ctrl_c_ends_all_ranks_in_order(self):
        command = RUN + ["2", "--", TRAIN, "--backend", "shoal", "--epochs", "100", "--json", self.path("results.json"), *SHORT]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        for line in process.stdout:
            if "step 4/" in line:
                break
        os.killpg(process.pid, signal.SIGINT)
        started = time.monotonic()
        output, complaints = process.communicate(timeout=240)
        assert process.returncode == 130, output + complaints
        assert time.monotonic() - started < 30
        assert "interrupted" in complaints
        assert "images/s" in output  # the table of results
        (row,) = self.rows("results.json")
        assert len(row["step_loss"]) >= 4
        assert row["images_per_s"] > 0
        assert row["accuracy"] is None

    def test_a_signal_to_one_rank_ends_all_ranks_at_one_step(self, request):
        command = RUN + ["3", "--", TRAIN, "--epochs", "100", "--log", self.path("log"), *SMALL]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        request.addfinalizer(process.terminate)
        for line in process.stdout:
            if "step 4/" in line:
                break
        ranks = [child for helper in children_of(process.pid) for child in children_of(helper)]
        assert len(ranks) == 3
        os.kill(ranks[1], signal.SIGINT)
        output, complaints = process.communicate(timeout=240)
        assert process.returncode == 130, output + complaints
        assert "shoal_train: interrupted" in complaints  # by rank 0
        with open(self.path("log"), encoding="utf-8") as file:
            assert [json.loads(line)["event"] for line in file][-1] == "epoch"
