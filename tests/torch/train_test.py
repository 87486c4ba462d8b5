"""The program shoal_train: results, agreement of backends, bad input, interruption."""
import json
import os
import signal
import subprocess
import tempfile
import time
import unittest

import cases

TRAIN = os.path.join(cases.BUILD, "bin", "shoal_train")
RUN = [os.path.join(cases.BUILD, "bin", "shoal"), "run", "-n"]
SHORT = ["--dataset", "synthetic", "--batch", "4", "--block", "2", "--threads", "1"]


def train(*arguments, ranks=1, environment=None, timeout=120):
    command = (RUN + [str(ranks), "--"] if ranks > 1 else []) + [TRAIN, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **(environment or {})})


class Train(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def refused(self, words, *arguments, environment=None):
        done = train(*arguments, environment=environment)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn(words, done.stderr)
        self.assertLessEqual(len(done.stderr.strip().splitlines()), 4, done.stderr)

    def test_models_are_listed(self):
        done = train("models")
        self.assertEqual(done.returncode, 0)
        self.assertIn("11,173,962", done.stdout)

    def test_backends_follow_the_same_curve(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                file = self.path(f"{ranks}.json")
                done = train("--backend", "shoal,gloo", "--steps", "4", "--json", file, *SHORT, ranks=ranks)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                with open(file, encoding="utf-8") as opened:
                    rows = json.load(opened)["results"]
                self.assertEqual([row["backend"] for row in rows], ["shoal", "gloo"])
                self.assertEqual([row["overlap"] for row in rows], ["next_forward", "backward"])
                for row in rows:
                    self.assertEqual(row["ranks"], ranks)
                    self.assertEqual(len(row["step_loss"]), 4)
                    self.assertGreater(row["images_per_s"], 0)
                    self.assertEqual(row["bytes"], 2 * 4 * 11173962)  # two measured steps
                for ours, theirs in zip(rows[0]["step_loss"], rows[1]["step_loss"]):
                    self.assertAlmostEqual(ours, theirs, delta=1e-4 * abs(theirs))

    def test_overlaps_are_the_same_training(self):
        file = self.path("overlaps.json")
        contestants = ["gloo+next_forward", "shoal+backward", "shoal"]
        done = train("--backend", ",".join(contestants), "--steps", "6", "--evaluate", "--json", file, *SHORT, ranks=2)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(file, encoding="utf-8") as opened:
            rows = json.load(opened)["results"]
        self.assertEqual([f"{row['backend']}+{row['overlap']}" for row in rows], contestants[:2] + ["shoal+next_forward"])
        self.assertIn("the images/s of shoal+next_forward", done.stdout)
        for row in rows:
            self.assertEqual(row["bytes"], 4 * 4 * 11173962)  # four measured steps, all of them finished
            self.assertEqual(row["step_loss"], rows[0]["step_loss"])  # two operands have one sum
            self.assertEqual(row["accuracy"], rows[0]["accuracy"])

    def test_accuracy_is_measured_when_asked_for(self):
        file = self.path("results.json")
        done = train("--steps", "2", "--evaluate", "--json", file, *SHORT)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(file, encoding="utf-8") as opened:
            accuracy = json.load(opened)["results"][0]["accuracy"]
        self.assertTrue(0 <= accuracy <= 1, accuracy)

    def test_bad_arguments(self):
        self.refused("unknown model \"vgg\"", "--model", "vgg")
        self.refused("--backend", "--backend", "smoke")
        self.refused("--backend", "--backend", "shoal+sideways")
        self.refused("--overlap", "--overlap", "sideways")
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

    def test_results_that_cannot_be_written(self):
        self.refused("/no/such/folder", "--steps", "1", "--json", "/no/such/folder/r.json", *SHORT)

    def test_a_rank_that_never_comes(self):
        environment = {"SHOAL_RANK": "0", "SHOAL_SIZE": "2", "SHOAL_MASTER_ADDR": "127.0.0.1", "SHOAL_MASTER_PORT": "29617",
                       "SHOAL_JOB_ID": "lonely"}
        self.refused("rank", "--timeout", "2", *SHORT, environment=environment)

    def test_ctrl_c_ends_all_ranks_in_good_order(self):
        command = RUN + ["2", "--", TRAIN, "--backend", "shoal", "--epochs", "100", *SHORT]
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


if __name__ == "__main__":
    cases.main()
