"""The example in Python and shoal_train make the same training: initial weights, order of images and losses are equal."""
import json
import os
import subprocess
import sys
import tempfile

import numpy
import pytest

import support

SCRIPT = os.path.join(os.path.dirname(__file__), "..", "..", "torch_plugin", "python", "examples", "train_resnet18.py")
TRAIN = os.path.join(support.BUILD, "bin", "shoal_train")
RUN = [os.path.join(support.BUILD, "bin", "shoal"), "run", "-n", "2", "--"]
SEED = 4


def test_losses_match_shoal_train():
    print(f"seed {SEED}")
    random = numpy.random.default_rng(SEED)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("data_batch_1.bin", "test_batch.bin"):
            records = random.integers(0, 256, (64, 3073), dtype=numpy.uint8)
            records[:, 0] %= 10
            records.tofile(os.path.join(folder, name))
        file = os.path.join(folder, "results.json")
        subprocess.run(RUN + [TRAIN, "--data", folder, "--overlap", "backward", "--no-augment", "--steps", "4", "--batch", "4", "--threads", "1",
                              "--json", file], check=True, capture_output=True, timeout=240)
        with open(file, encoding="utf-8") as opened:
            expected = json.load(opened)["results"][0]["step_loss"]
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", SCRIPT, folder, "4", "4"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stdout + done.stderr
    losses = [float(line.split()[3]) for line in done.stdout.splitlines() if line.startswith("step ")]
    assert len(losses) == 4, done.stdout
    for ours, theirs in zip(expected, losses):
        assert ours == pytest.approx(theirs, abs=2e-6)  # the same bits; the example prints six digits
