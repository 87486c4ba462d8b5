"""The program shoal_train: results, agreement of backends, bad input, interruption."""
import json
import os
import pickletools
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
import xml.etree.ElementTree
import zipfile

import numpy
import torch

import cases
import reference_models

TRAIN = os.path.join(cases.BUILD, "bin", "shoal_train")
RUN = [os.path.join(cases.BUILD, "bin", "shoal"), "run", "-n"]
TINY = ["--model", "shufflenet_v2_x0.5", "--batch", "4", "--block", "2", "--threads", "1"]
SMALL = ["--dataset", "synthetic", *TINY]
SHORT = ["--dataset", "synthetic", "--batch", "4", "--block", "2", "--threads", "1"]


# As the papers' networks have in the form for CIFAR; of the others the reference tells them.
PARAMETERS = {"vgg16": 14728266, "resnet18": 11173962, "resnet50": 23520842, "mobilenet_v2": 2296922, "shufflenet_v2_x0.5": 352042,
              "shufflenet_v2_x1": 1263854, "shufflenet_v2_x1.5": 2488874, "shufflenet_v2_x2": 5338026, "densenet121": 6956298}


def train(*arguments, ranks=1, environment=None, timeout=120):
    command = (RUN + [str(ranks), "--"] if ranks > 1 else []) + [TRAIN, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **(environment or {})})


def traffic_bytes(row, steps, parameters):
    """Of the measured steps: gradients of four bytes each and, where averages overlap with the next forward, the share that rank 0 wishes."""
    return steps * (4 * parameters + (8 if row["overlap"] == "next_forward" else 0))


def children_of(process):
    with open(f"/proc/{process}/task/{process}/children", encoding="utf-8") as file:
        return [int(child) for child in file.read().split()]


class Train(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def rows(self, name):
        with open(self.path(name), encoding="utf-8") as opened:
            return json.load(opened)["results"]

    def refused(self, words, *arguments, environment=None):
        done = train(*arguments, environment=environment)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn(words, done.stderr)
        self.assertLessEqual(len(done.stderr.strip().splitlines()), 4, done.stderr)

    def test_models_are_listed(self):
        done = train("models")
        self.assertEqual(done.returncode, 0)
        listed = {line.split()[0]: [int(cell.replace(",", "")) for cell in line.split()[1:4]] for line in done.stdout.splitlines()[1:]}
        self.assertEqual({name: listed[name][0] for name in PARAMETERS}, PARAMETERS)
        for name, (parameters, tensors, bytes_) in listed.items():
            values = list(reference_models.make(name, 3, 10).parameters())
            self.assertEqual((parameters, tensors, bytes_), (sum(value.numel() for value in values), len(values), 4 * parameters), name)

    def test_backends_follow_the_same_curve(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                file = self.path(f"{ranks}.json")
                done = train("--backend", "shoal,gloo", "--steps", "4", "--json", file, *SHORT, ranks=ranks)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                rows = self.rows(file)
                self.assertEqual([row["backend"] for row in rows], ["shoal", "gloo"])
                self.assertEqual([row["overlap"] for row in rows], ["next_forward", "backward"])
                for row in rows:
                    self.assertEqual(row["ranks"], ranks)
                    self.assertEqual(len(row["step_loss"]), 4)
                    self.assertGreater(row["images_per_s"], 0)
                    self.assertEqual(row["bytes"], traffic_bytes(row, 2, 11173962))
                for ours, theirs in zip(rows[0]["step_loss"], rows[1]["step_loss"]):
                    self.assertAlmostEqual(ours, theirs, delta=1e-4 * abs(theirs))

    def test_overlaps_are_the_same_training(self):
        file = self.path("overlaps.json")
        contestants = ["gloo+next_forward", "shoal+backward", "shoal"]
        done = train("--backend", ",".join(contestants), "--steps", "6", "--evaluate", "--json", file, *SHORT, ranks=2)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = self.rows(file)
        self.assertEqual([f"{row['backend']}+{row['overlap']}" for row in rows], contestants[:2] + ["shoal+next_forward"])
        self.assertIn("the images/s of shoal+next_forward", done.stdout)
        for row in rows:
            self.assertEqual(row["bytes"], traffic_bytes(row, 4, 11173962), "all of them finished")
            self.assertEqual(row["step_loss"], rows[0]["step_loss"])  # two operands have one sum
            self.assertEqual(row["accuracy"], rows[0]["accuracy"])

    def test_accuracy_is_measured_when_asked_for(self):
        file = self.path("results.json")
        done = train("--steps", "2", "--evaluate", "--json", file, *SHORT)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        accuracy = self.rows(file)[0]["accuracy"]
        self.assertTrue(0 <= accuracy <= 1, accuracy)

    def write_images(self, count, label_of, pixels_of):
        """Files of CIFAR-10, the same for training and testing but for `pixels_of` and `label_of`, which are told the file and the image."""
        for name, images in (("data_batch_1.bin", count), ("test_batch.bin", 50)):
            with open(self.path(name), "wb") as file:
                for image in range(images):
                    file.write(bytes([label_of(name, image)]) + pixels_of(name, image))

    def test_accuracy_is_the_same_on_any_number_of_ranks(self):
        # All training images are one, so that 1, 2 and 4 ranks make the same steps bit for bit: halves and quarters of sums lose nothing.
        random = numpy.random.default_rng(5)
        one = random.integers(0, 256, 3072, dtype=numpy.uint8).tobytes()
        self.write_images(96, lambda name, image: 3 if name.startswith("data") or image % 3 else 4,
                          lambda name, _: one if name.startswith("data") else random.integers(0, 256, 3072, dtype=numpy.uint8).tobytes())
        accuracies, weights = [], []
        for ranks in (1, 2, 4):  # 50 test images are no multiple of 4
            file = self.path(f"{ranks}.json")
            done = train(*TINY, "--data", self.folder.name, "--no-augment", "--steps", "4", "--evaluate", "--json", file, "--checkpoint",
                         self.path("weights.pt"), ranks=ranks)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            accuracies.append(self.rows(file)[0]["accuracy"])
            weights.append(dict(torch.load(self.path("weights.pt"))))
        for other in weights[1:]:
            for name, value in weights[0].items():
                if name.split("/")[1:2] in (["parameter"], ["buffer"]):
                    self.assertTrue(torch.equal(other[name], value), name)
        self.assertEqual(accuracies, [accuracies[0]] * 3)
        self.assertAlmostEqual(50 * accuracies[0], round(50 * accuracies[0]), delta=1e-9, msg="every image counts once")
        self.assertTrue(0 < accuracies[0] < 1, accuracies)

    def test_results_say_what_they_are_of(self):
        file = self.path("results.json")
        self.trained("--steps", "3", "--json", file)
        with open(file, encoding="utf-8") as opened:
            found = json.load(opened)
        self.assertEqual(found["data"], {"kind": "generated", "words": "generated images, 5,000 for training and 1,000 for testing",
                                         "train_images": 5000, "test_images": 1000})
        (row,) = found["results"]
        self.assertEqual((row["device"], row["threads"], row["epoch_steps"]), ("cpu", 1, 1250))
        self.assertRegex(found["machine"]["shoal"], r"^\d+\.\d+\.\d+$")
        self.assertTrue(torch.__version__.startswith(found["machine"]["torch"]), found["machine"])
        self.assertRegex(found["machine"]["compiler"], r"\d+\.\d+")
        if found["machine"]["open_mpi"] is not None:
            self.assertRegex(found["machine"]["open_mpi"], r"MPI.*\d+\.\d+")

    def changed_row(self, name, changed_name, **fields):
        with open(self.path(name), encoding="utf-8") as opened:
            document = json.load(opened)
        document["results"][0].update(fields)
        with open(self.path(changed_name), "w", encoding="utf-8") as opened:
            json.dump(document, opened)

    def test_speed_ups_are_over_one_rank_with_as_many_threads(self):
        alone, together = self.path("alone.json"), self.path("together.json")
        self.trained("--steps", "6", "--json", alone)
        done = self.trained("--backend", "shoal,gloo", "--steps", "6", "--json", together, "--alone", alone, ranks=2)
        base = self.rows(alone)[0]["images_per_s"]
        for row in self.rows(together):
            self.assertAlmostEqual(row["speedup_vs_1"], row["images_per_s"] / base)
            self.assertIn(f" {row['speedup_vs_1']:.2f} ", done.stdout)
        done = train("--steps", "6", "--json", together, "--alone", alone, *SMALL[:-1], "2")  # threads
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("there is no speed-up", done.stderr)
        self.assertIsNone(self.rows(together)[0]["speedup_vs_1"])
        self.refused("--alone", "--alone", self.path("missing.json"), "--steps", "3", *SMALL)
        self.refused("holds no results", "--alone", __file__, "--steps", "3", *SMALL)
        self.refused("cannot be read", "--alone", self.folder.name, "--steps", "3", *SMALL)
        self.changed_row("alone.json", "changed.json", ranks="one")
        self.refused("changed.json: row 1 is no result of shoal_train --json: \"ranks\" is string, not a whole number",
                     "--alone", self.path("changed.json"), "--steps", "3", *SMALL)

    def test_a_report_finds_the_one_rank_run_itself(self):
        self.trained("--steps", "6", "--json", self.path("alone.json"))
        self.trained("--steps", "6", "--json", self.path("together.json"), ranks=2)
        done = train("report", self.path("alone.json"), self.path("together.json"), "--out", self.path("report"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        ratio = self.rows("together.json")[0]["images_per_s"] / self.rows("alone.json")[0]["images_per_s"]
        with open(os.path.join(self.path("report"), "index.html"), encoding="utf-8") as file:
            page = file.read()
        self.assertIn("<th>times one rank</th>", page)
        self.assertIn(f'<td class="number">{ratio:.2f}</td>', page)
        self.assertIn("Images: generated images, 5,000 for training", page)
        self.assertIn("compiler: ", page)
        pictures = os.listdir(self.path("report"))
        for name in ("speedup.svg", "epoch-time.svg", "utilisation-1.svg", "utilisation-2.svg"):
            self.assertIn(name, pictures)
        with open(os.path.join(self.path("report"), "epoch-time.svg"), encoding="utf-8") as file:
            picture = file.read()
        self.assertIn(">~", picture)  # projected: no whole epoch was measured

    def test_a_plot_is_drawn_of_a_run(self):
        alone, plot = self.path("alone.json"), self.path("plot.svg")
        self.trained("--steps", "6", "--json", alone)
        self.trained("--backend", "shoal,gloo", "--steps", "6", "--alone", alone, "--plot", plot, ranks=2)
        words = " ".join(text for text in xml.etree.ElementTree.parse(plot).getroot().itertext() if text.strip())
        for word in ("images per second", "x 1 rank", "gloo", "shoal (next forward)", "gloo (backward)", "shufflenet_v2_x0.5"):
            self.assertIn(word, words)
        self.assertEqual(sorted(os.listdir(self.folder.name)), ["alone.json", "plot.svg"])  # and nothing else
        self.refused("/no/such/folder/plot.svg", "--plot", "/no/such/folder/plot.svg", "--steps", "3", *SMALL)

    def test_bad_arguments(self):
        self.refused("unknown model \"vgg\"", "--model", "vgg")
        self.refused("--backend", "--backend", "smoke")
        self.refused("--backend", "--backend", "shoal+sideways")
        self.refused("--overlap", "--overlap", "sideways")
        self.refused("--device", "--device", "abacus")
        self.refused("--batch", "--batch", "-1")
        self.refused("--steps", "--steps", "many")

    def test_data_that_is_missing_truncated_or_corrupt(self):
        self.refused("holds no cifar10 files", "--data", self.folder.name)
        self.refused("holds no fashion_mnist files", "--dataset", "fashion_mnist",
                     environment={"SHOAL_DATA_DIR": self.folder.name})
        for name in ("data_batch_1.bin", "test_batch.bin"):
            with open(self.path(name), "wb") as file:
                file.write(bytes(3073))
        with open(self.path("data_batch_1.bin"), "ab") as file:
            file.write(bytes(17))
        self.refused("truncated", "--data", self.folder.name)
        with open(self.path("data_batch_1.bin"), "wb") as file:
            file.write(b"\xff" + bytes(3072))
        self.refused("should be a label", "--data", self.folder.name)
        with open(self.path("train-images-idx3-ubyte.gz"), "wb") as file:
            file.write(b"\x1f\x8b\x08\x00")
        self.refused("train-images-idx3-ubyte.gz", "--dataset", "fashion_mnist", "--data", self.folder.name)

    def trained(self, *arguments, ranks=1, environment=None):
        done = train(*arguments, *SMALL, ranks=ranks, environment=environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done

    def test_a_resumed_training_has_the_same_bits(self):
        # Else an algorithm may be chosen in the second run that adds in another order: the links are measured anew.
        same_bits = {"SHOAL_NUMERICS": "repeatable"}
        cases_of = ((1, "shoal", ["--optimizer", "adadelta", "--schedule", "cosine"]),
                    (2, "shoal,gloo", ["--optimizer", "adam", "--schedule", "step", "--epochs", "3"]),
                    (3, "shoal", ["--optimizer", "sgd"]))
        for ranks, backends, more in cases_of:
            with self.subTest(ranks=ranks):
                def trained(*options):
                    self.trained("--backend", backends, *more, *options, ranks=ranks, environment=same_bits)
                trained("--steps", "5", "--json", self.path("whole.json"), "--checkpoint", self.path("whole.pt"))
                trained("--steps", "3", "--checkpoint", self.path("half.pt"))
                trained("--steps", "5", "--json", self.path("rest.json"), "--checkpoint", self.path("rest.pt"),
                        "--resume", self.path("half.pt"))
                for whole, rest in zip(self.rows("whole.json"), self.rows("rest.json"), strict=True):
                    self.assertEqual(rest["step_loss"], whole["step_loss"][3:])
                expected, found = dict(torch.load(self.path("whole.pt"))), dict(torch.load(self.path("rest.pt")))
                self.assertEqual(set(found), set(expected))
                names = {key.split("/")[1] for key in expected if "/" in key}
                self.assertEqual(names, {"parameter", "buffer", "optimizer", "step"})
                for key, tensor in expected.items():
                    self.assertTrue(torch.equal(found[key], tensor), key)

    def test_a_resumed_training_goes_on_in_the_next_epoch(self):
        for name in ("data_batch_1.bin", "test_batch.bin"):  # 40 images: 10 steps an epoch
            with open(self.path(name), "wb") as file:
                file.write(b"".join(bytes([image % 10]) + bytes([image]) * 3072 for image in range(40)))
        of_two = [*TINY, "--dataset", "cifar10", "--data", self.folder.name, "--epochs", "2", "--evaluate"]
        for more in (["--steps", "10", "--checkpoint", self.path("one.pt")],
                     ["--steps", "13", "--resume", self.path("one.pt"), "--json", self.path("two.json")]):
            done = train(*of_two, *more)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        (row,) = self.rows("two.json")
        self.assertEqual(row["epoch"], 2)
        self.assertEqual(len(row["step_loss"]), 3)

    def test_checkpoints_that_do_not_fit(self):
        self.trained("--steps", "1", "--checkpoint", self.path("good.pt"))
        small = ["--steps", "2", *SMALL]
        self.refused("no such file", "--resume", self.path("missing.pt"), *small)
        self.refused("seed 1, not 2", "--resume", self.path("good.pt"), "--seed", "2", *small)
        self.refused("optimizer \"sgd\", not \"adam\"", "--resume", self.path("good.pt"), "--optimizer", "adam", "--lr", "0.01", *small)
        self.refused("schedule \"constant\", not \"cosine\"", "--resume", self.path("good.pt"), "--schedule", "cosine", *small)
        self.refused("holds nothing of gloo", "--resume", self.path("good.pt"), "--backend", "gloo", *small)
        self.refused("has made 1 steps already", "--resume", self.path("good.pt"), "--steps", "1", *SMALL)
        with open(self.path("good.pt"), "rb") as file:
            content = file.read()
        for name, damaged in (("empty", b""), ("junk", b"junk" * 100), ("half", content[:len(content) // 2])):
            with open(self.path(name), "wb") as file:
                file.write(damaged)
            self.refused("is not a checkpoint", "--resume", self.path(name), *small)
        self.refused("is not a file", "--resume", self.folder.name, *small)
        self.refused("/no/such/folder", "--checkpoint", "/no/such/folder/c.pt", *small)

    def damaged(self, content, settings=None, **tensors):
        """The checkpoint's dictionary as a file, with other settings or tensors."""
        changed = dict(content)
        if settings:
            known = json.loads(bytes(content["settings"].tolist()))
            changed["settings"] = torch.tensor(list(json.dumps({**known, **settings}).encode()), dtype=torch.uint8)
        for name, tensor in tensors.items():
            changed["shoal+next_forward/" + name] = tensor
        torch.save(tuple(changed.items()), self.path("damaged.pt"))
        return "--resume", self.path("damaged.pt"), "--optimizer", "adam", "--lr", "0.01", "--steps", "2"

    def test_checkpoints_with_numbers_that_no_training_comes_to(self):
        self.trained("--optimizer", "adam", "--lr", "0.01", "--steps", "1", "--checkpoint", self.path("good.pt"))
        content = dict(torch.load(self.path("good.pt")))
        self.trained(*self.damaged(content))  # nothing is
        where = self.path("damaged.pt") + ": "
        for course, words in (("1", "\"course\" is not 4 whole numbers"), ([1, 0, 0], "\"course\" is not 4 whole numbers"),
                              ([0, 0, 0, 0], "the number of ranks is 0"), ([1, 0, -5, 0], "the step is -5, not from 0 to 1"),
                              ([1, 0, 2**63, 0], "\"course\" is not 4 whole numbers"), ([1, 2**60, 0, 0], "the pass is"),
                              ([1, 0, 0, 2**60], "the number of images seen is")):
            self.refused(where + "i", *self.damaged(content, {"course": course}), *SMALL)
            self.refused(words, *self.damaged(content, {"course": course}), *SMALL)
        average = content["shoal+next_forward/optimizer/head.bias/exp_avg"]
        for name, tensor, words in (("step", torch.tensor(-1), "step is -1"), ("step", torch.tensor(2**62), "step is 4611686018427387904"),
                                    ("step", torch.tensor(1.5), "no step of this shape and type"),
                                    ("parameter/head.bias", torch.zeros(10, dtype=torch.int32), "no parameter/head.bias of this shape and type"),
                                    ("optimizer/head.bias/step", torch.tensor(0), "has made 0 steps"),
                                    ("optimizer/head.bias/exp_avg", average[:1], "exp_avg of head.bias is not of its shape and type"),
                                    ("optimizer/head.bias/exp_avg", average.double(), "exp_avg of head.bias is not of its shape and type")):
            self.refused(where, *self.damaged(content, **{name: tensor}), *SMALL)
            self.refused(words, *self.damaged(content, **{name: tensor}), *SMALL)

    def test_all_ranks_refuse_a_checkpoint_with_the_same_words(self):
        self.trained("--optimizer", "adam", "--lr", "0.01", "--steps", "1", "--checkpoint", self.path("good.pt"), ranks=2)
        resume = self.damaged(dict(torch.load(self.path("good.pt"))), {"course": [2, 0, 7, 0]})
        done = train(*resume, *SMALL, ranks=2)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual(done.stderr.count("damaged.pt: in its \"course\" the step is 7, not from 0 to 1"), 2, done.stderr)

    def test_a_checkpoint_whose_tensors_do_not_lie_in_the_file(self):
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
            self.refused("\"settings\" is damaged", "--resume", self.path("long.pt"), "--steps", "2", *SMALL)

    def test_bfloat16_is_nearly_the_same_training(self):
        losses = {}
        for precision in ("fp32", "bf16"):
            self.trained("--steps", "3", "--precision", precision, "--json", self.path("results.json"))
            losses[precision] = self.rows("results.json")[0]["step_loss"]
        for exact, rough in zip(losses["fp32"], losses["bf16"], strict=True):
            self.assertAlmostEqual(exact, rough, delta=0.1 * exact)
        self.assertNotEqual(losses["fp32"], losses["bf16"])

    def test_the_log_has_a_line_for_every_turn_and_epoch(self):
        self.trained("--steps", "6", "--schedule", "cosine", "--log", self.path("log"), "--json", self.path("results.json"))
        with open(self.path("log"), encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        self.assertEqual([(line["event"], line["step"]) for line in lines], [("turn", 2), ("turn", 4), ("turn", 6), ("epoch", 6)])
        rates = [line["learning_rate"] for line in lines[:3]]
        self.assertEqual(rates, sorted(rates, reverse=True))
        self.assertLess(rates[-1], 0.01)
        (row,) = self.rows("results.json")
        self.assertEqual(lines[2]["loss"], row["step_loss"][-1])

    def test_a_full_disk_costs_the_log_and_the_trace_but_not_the_training(self):
        done = train("--steps", "6", "--log", "/dev/full", "--trace", "/dev/full", "--json", self.path("results.json"), *SMALL, ranks=2)
        for lost in ("log", "trace"):
            said = f"shoal_train: write /dev/full: No space left on device; training goes on without the {lost}"
            self.assertEqual(done.stderr.count(said), 1, done.stderr)
        self.assertNotEqual(done.returncode, 0)
        (row,) = self.rows("results.json")
        self.assertEqual(len(row["step_loss"]), 6)

    def test_a_log_that_cannot_be_opened_ends_all_ranks_with_the_reason(self):
        done = train("--steps", "6", "--log", "/no/such/folder/log", *SMALL, ranks=2)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("shoal_train: write /no/such/folder/log: No such file or directory", done.stderr)
        self.assertNotIn("what():", done.stderr)
        self.assertNotIn("frame #", done.stderr)

    def test_a_report_is_a_page_that_needs_nothing_else(self):
        self.trained("--steps", "6", "--evaluate", "--json", self.path("results.json"))
        out = self.path("report")
        done = train("report", self.path("results.json"), "--out", out)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(os.path.join(out, "index.html"), encoding="utf-8") as file:
            page = file.read()
        self.assertIn("shufflenet_v2_x0.5", page)
        self.assertGreaterEqual(page.count("<svg"), 3)
        self.assertNotRegex(page, r'(src|href)="http|<script|url\(http')
        pictures = [name for name in os.listdir(out) if name.endswith(".svg")]
        self.assertIn("throughput.svg", pictures)
        for name in pictures:
            xml.etree.ElementTree.parse(os.path.join(out, name))
        with open(self.path("junk.json"), "w", encoding="utf-8") as file:
            file.write("{}")
        self.refused("holds no results", "report", self.path("junk.json"))
        for fields, words in (({"ranks": "1"}, '"ranks" of row 1 is not a whole number'), ({"images_per_s": "40"}, "is not a number or null"),
                              ({"model": None}, '"model" of row 1 is not text')):
            self.changed_row("results.json", "changed.json", **fields)
            self.refused("holds no results of shoal_train --json: ", "report", self.path("changed.json"))
            self.refused(words, "report", self.path("changed.json"))
        for rows in ("[7]", "[{}]", "7", '[{"step_loss": 1}]'):
            with open(self.path("junk.json"), "w", encoding="utf-8") as file:
                file.write('{"results": %s}' % rows)
            self.refused("holds no results of shoal_train --json: ", "report", self.path("junk.json"))
        self.refused("cannot be read", "report", self.path("missing.json"))

    def test_a_trace_shows_every_rank_and_layer(self):
        self.trained("--backend", "shoal,gloo", "--steps", "6", "--trace", self.path("trace.json"), "--json", self.path("results.json"), ranks=2)
        with open(self.path("trace.json"), encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        self.assertEqual(sorted(names.values()), sorted(f"{backend} rank {rank}" for backend in ("shoal+next_forward", "gloo+backward")
                                                        for rank in (0, 1)))
        for process in names:
            own = [event for event in events if event["pid"] == process and event["ph"] == "X"]
            training = sorted((event for event in own if event["tid"] == 0), key=lambda event: event["ts"])
            shown = {event["name"] for event in training}
            for name in ("load", "forward stem.conv", "backward stem.conv", "forward head", "backward units.3.branch.first.norm"):
                self.assertIn(name, shown)
            for one, other in zip(training, training[1:]):  # one after the other, without gaps
                self.assertAlmostEqual(one["ts"] + one["dur"], other["ts"], delta=1)
            averaged = [event for event in own if event["cat"] == "gradients"]
            self.assertTrue(averaged)
            self.assertTrue(all(event["tid"] > 0 for event in averaged))
            stages = [event for event in own if event["cat"] in ("node reduce", "wire", "node gather")]
            if names[process].startswith("gloo"):
                self.assertEqual(stages, [])
                continue
            self.assertEqual({event["cat"] for event in stages}, {"node reduce", "node gather"})  # both ranks are of one host
            names_ = {event["name"].split(" ", 1)[1] for event in own if event["cat"] in ("gradients", "blocking")}
            numbers = sorted(int(name.split()[1].rstrip(",")) for name in names_ if name.startswith("bucket "))
            self.assertEqual(sorted(set(numbers)), list(range(1, numbers[-1] + 1)))
            for event in stages:
                self.assertIn(event["name"].removeprefix(event["cat"] + " "), names_)  # the bucket whose stage it is
                self.assertGreater(event["args"]["bytes"], 0)
        done = train("report", self.path("results.json"), "--trace", self.path("trace.json"), "--out", self.path("report"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("timeline-1.svg", os.listdir(self.path("report")))
        for junk, words in (("[]", "the file is no object"), ('{"traceEvents": {}}', '"traceEvents" of the file is not a list'),
                            ('{"traceEvents": [7]}', "event 1 is no object"),
                            ('{"traceEvents": [{"ph": "X", "name": "a", "pid": 1, "tid": 0, "cat": "load", "ts": "0", "dur": 1}]}',
                             '"ts" of event 1 is not a number')):
            with open(self.path("junk.json"), "w", encoding="utf-8") as file:
                file.write(junk)
            self.refused("holds no events of shoal_train --trace: " + words, "report", self.path("results.json"), "--trace",
                         self.path("junk.json"))
        self.refused("too few", "--trace", self.path("t.json"), "--steps", "2", *SMALL)

    def test_a_step_of_several_batches_makes_one_average(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                still = ["--lr", "0", "--weight-decay", "0"]  # losses are those of the start, whatever the step
                self.trained("--steps", "6", *still, "--json", self.path("single.json"), ranks=ranks)
                self.trained("--steps", "2", *still, "--accumulate", "3", "--json", self.path("triple.json"), ranks=ranks)
                single, triple = self.rows("single.json")[0]["step_loss"], self.rows("triple.json")[0]["step_loss"]
                for step in (0, 1):
                    self.assertAlmostEqual(triple[step], sum(single[3 * step:3 * step + 3]) / 3, delta=1e-5)
                self.trained("--steps", "4", "--accumulate", "3", "--backend", "shoal,gloo", "--json", self.path("both.json"), ranks=ranks)
                shoal, gloo = self.rows("both.json")
                self.assertEqual(shoal["step_loss"], gloo["step_loss"])
                self.assertNotAlmostEqual(shoal["step_loss"][1], triple[1], delta=1e-5)  # it learns
                self.assertEqual(shoal["bytes"], traffic_bytes(shoal, 2, 352042))  # of steps of three batches

    def test_mpi_follows_the_same_curve(self):
        if shutil.which("mpirun") is None:
            self.skipTest("no mpirun here")
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", TRAIN, "--backend", "shoal,mpi,gloo", "--steps", "4",
                   "--json", self.path("mpi.json"), *SMALL]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if "built without MPI" in done.stderr:
            self.skipTest("shoal_train was built without MPI")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = self.rows("mpi.json")
        self.assertEqual([(row["backend"], row["overlap"]) for row in rows],
                         [("shoal", "next_forward"), ("mpi", "backward"), ("gloo", "backward")])
        for row in rows:
            self.assertEqual(row["step_loss"], rows[0]["step_loss"])  # two operands have one sum
            self.assertEqual(row["bytes"], traffic_bytes(row, 2, 352042), "of every backend")
            self.assertGreater(row["images_per_s"], 0)

    def test_mpi_needs_mpirun(self):
        done = train("--backend", "mpi", "--steps", "1", *SMALL, ranks=2)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(done.stderr, "mpirun|built without MPI")

    def test_processor_and_gpu_are_not_compared(self):
        self.refused("take --backend shoal,nccl for GPUs", "--backend", "shoal,gloo,nccl", "--steps", "1", *SMALL)
        self.refused("--device cuda: gloo trains on the processor", "--backend", "shoal,gloo", "--device", "cuda", "--steps", "1", *SMALL)
        self.refused("nccl trains on GPUs only", "--backend", "shoal,nccl", "--device", "cpu", "--steps", "1", *SMALL)
        self.refused("--on-failure shrink", "--on-failure", "shrink", "--device", "cuda", "--steps", "1", *SMALL)

    def test_a_gpu_that_is_not_there_is_said(self):
        if os.path.exists("/dev/nvidiactl"):
            self.skipTest("there is a GPU here")
        for asking in (["--backend", "nccl"], ["--backend", "shoal,nccl"], ["--backend", "shoal", "--device", "cuda"]):
            self.refused("no GPU here: ", *asking, "--steps", "1", *SMALL)
            self.refused("--device cpu", *asking, "--steps", "1", *SMALL)
        done = self.trained("--device", "auto", "--steps", "3", "--json", self.path("results.json"), ranks=2)
        self.assertIn("on the processor", done.stdout)

    def test_shoal_and_nccl_take_turns_on_a_gpu(self):
        if not os.path.exists("/dev/nvidiactl"):
            self.skipTest("no GPU here")
        self.trained("--backend", "shoal,nccl", "--device", "cuda", "--steps", "6", "--evaluate", "--json", self.path("results.json"))
        shoal, nccl = self.rows("results.json")
        self.assertEqual({row["device"] for row in (shoal, nccl)}, {"cuda"})
        for ours, theirs in zip(shoal["step_loss"], nccl["step_loss"], strict=True):
            self.assertAlmostEqual(ours, theirs, delta=1e-3 * abs(theirs))

    def test_all_backends_end_together_when_the_time_is_over(self):
        done = train("--backend", "shoal,gloo", "--epochs", "1000", "--seconds", "0.1", "--json", self.path("results.json"), *SMALL, ranks=2)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        shoal, gloo = self.rows("results.json")
        self.assertEqual(len(shoal["step_loss"]), len(gloo["step_loss"]))
        self.assertLess(len(shoal["step_loss"]), 1000)

    def test_the_use_of_a_gpu_is_measured_or_said_to_be_not(self):
        self.trained("--steps", "3", "--json", self.path("results.json"))
        with open(self.path("results.json"), encoding="utf-8") as file:
            document = json.load(file)
        if document["results"][0]["gpu_percent"] is None:
            self.assertRegex(document["machine"]["gpu_utilisation"], "^not measured: .*(NVIDIA|NVML|libnvidia)")

    def test_results_that_cannot_be_written(self):
        self.refused("/no/such/folder", "--steps", "1", "--json", "/no/such/folder/r.json", *SHORT)

    def test_a_rank_that_never_comes(self):
        environment = {"SHOAL_RANK": "0", "SHOAL_SIZE": "2", "SHOAL_MASTER_ADDR": "127.0.0.1", "SHOAL_MASTER_PORT": "29617",
                       "SHOAL_JOB_ID": "lonely"}
        self.refused("rank", "--timeout", "2", *SHORT, environment=environment)

    def test_ctrl_c_ends_all_ranks_in_good_order(self):
        command = RUN + ["2", "--", TRAIN, "--backend", "shoal", "--epochs", "100", "--json", self.path("results.json"), *SHORT]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        for line in process.stdout:
            if "step 4/" in line:
                break
        os.killpg(process.pid, signal.SIGINT)
        started = time.monotonic()
        output, complaints = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, output + complaints)
        self.assertLess(time.monotonic() - started, 30)
        self.assertIn("interrupted", complaints)
        self.assertIn("images/s", output)  # what is known is reported
        (row,) = self.rows("results.json")
        self.assertGreaterEqual(len(row["step_loss"]), 4)
        self.assertGreater(row["images_per_s"], 0)
        self.assertIsNone(row["accuracy"])

    def test_a_signal_to_one_rank_ends_all_at_the_same_step(self):
        command = RUN + ["3", "--", TRAIN, "--epochs", "100", "--log", self.path("log"), *SMALL]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.terminate)
        for line in process.stdout:
            if "step 4/" in line:
                break
        ranks = [child for helper in children_of(process.pid) for child in children_of(helper)]
        self.assertEqual(len(ranks), 3)
        os.kill(ranks[1], signal.SIGINT)
        output, complaints = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, output + complaints)
        self.assertIn("shoal_train: interrupted", complaints)  # rank 0 says so
        with open(self.path("log"), encoding="utf-8") as file:
            self.assertEqual([json.loads(line)["event"] for line in file][-1], "epoch")


if __name__ == "__main__":
    cases.main()
