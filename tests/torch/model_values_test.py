"""Forward, backward and running statistics of every network are those of the same network in Python, from the same weights."""
import os
import subprocess
import tempfile
import unittest

import torch

import cases
import reference_models

DUMP = os.path.join(cases.BUILD, "bin", "test_torch_dump_model")
TRAIN = os.path.join(cases.BUILD, "bin", "shoal_train")
SEED = 11


def all_names():
    listed = subprocess.run([TRAIN, "models"], check=True, capture_output=True, text=True).stdout
    return [line.split()[0] for line in listed.splitlines()[1:]]


class Models(unittest.TestCase):
    def assert_close(self, ours, theirs, what):
        self.assertEqual(ours.shape, theirs.shape, what)
        scale = max(float(theirs.abs().max()), 1e-3)  # some gradients are zero but for rounding
        self.assertLess(float((ours - theirs).abs().max()) / scale, 1e-5, what)

    def check(self, name, channels, pixels, classes):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "dump.pt")
            subprocess.run([DUMP, name, str(channels), str(pixels), str(classes), str(SEED), file], check=True)
            dump = dict(torch.load(file))
        model = reference_models.make(name, channels, classes).double()
        parameters = list(model.parameters())
        self.assertEqual(len(parameters), sum(key.startswith("parameter ") for key in dump))
        with torch.no_grad():
            for index, parameter in enumerate(parameters):
                self.assertEqual(parameter.shape, dump[f"parameter {index}"].shape, f"{name}: parameter {index}")
                parameter.copy_(dump[f"parameter {index}"])
        scores = model(dump["images"])
        torch.nn.functional.cross_entropy(scores, dump["labels"]).backward()
        self.assert_close(dump["scores"], scores.detach(), f"{name}: scores")
        for index, parameter in enumerate(parameters):
            self.assert_close(dump[f"gradient {index}"], parameter.grad, f"{name}: gradient {index}")
        buffers = [buffer.double() for buffer in model.buffers()]
        self.assertEqual(len(buffers), sum(key.startswith("buffer ") for key in dump))
        for index, buffer in enumerate(buffers):
            self.assert_close(dump[f"buffer {index}"].double(), buffer, f"{name}: buffer {index}")

    def test_every_network_is_its_reference(self):
        names = all_names()
        self.assertEqual(len(names), 13)
        print(f"seed {SEED}")
        for position, name in enumerate(names):
            with self.subTest(model=name):
                self.check(name, *((3, 32, 10) if position % 2 else (1, 28, 5)))

    def test_the_other_shape(self):
        for name in ("vgg16", "densenet121", "shufflenet_v2_x1"):
            with self.subTest(model=name):
                self.check(name, 3, 28, 10)


if __name__ == "__main__":
    cases.main()
