"""Scores, gradients and running statistics of every network match those of the same network in Python with the same weights."""
import os
import subprocess
import tempfile

import pytest
import torch

import reference_models
import support

DUMP = [os.path.join(support.BUILD, "bin", "test_torch_training"), "dump_model"]
TRAIN = os.path.join(support.BUILD, "bin", "shoal_train")
SEED = 11
MODELS = ("vgg11", "vgg13", "vgg16", "vgg19", "resnet18", "resnet34", "resnet50", "mobilenet_v2", "shufflenet_v2_x0.5", "shufflenet_v2_x1",
          "shufflenet_v2_x1.5", "shufflenet_v2_x2", "densenet121")
COLOR, GREY = (3, 32, 10), (1, 28, 5)  # channels, pixels of a side, classes


def assert_close(ours, theirs, what):
    assert ours.shape == theirs.shape, what
    scale = max(float(theirs.abs().max()), 1e-3)  # some gradients are zero but for rounding
    assert float((ours - theirs).abs().max()) / scale < 1e-5, what


def check(name, channels, pixels, classes):
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "dump.pt")
        subprocess.run([*DUMP, name, str(channels), str(pixels), str(classes), str(SEED), file], check=True)
        dump = dict(torch.load(file))
    model = reference_models.make(name, channels, classes).double()
    parameters = list(model.parameters())
    assert len(parameters) == sum(key.startswith("parameter ") for key in dump)
    with torch.no_grad():
        for index, parameter in enumerate(parameters):
            assert parameter.shape == dump[f"parameter {index}"].shape, f"{name}: parameter {index}"
            parameter.copy_(dump[f"parameter {index}"])
    scores = model(dump["images"])
    torch.nn.functional.cross_entropy(scores, dump["labels"]).backward()
    assert_close(dump["scores"], scores.detach(), f"{name}: scores")
    for index, parameter in enumerate(parameters):
        assert_close(dump[f"gradient {index}"], parameter.grad, f"{name}: gradient {index}")
    buffers = [buffer.double() for buffer in model.buffers()]
    assert len(buffers) == sum(key.startswith("buffer ") for key in dump)
    for index, buffer in enumerate(buffers):
        assert_close(dump[f"buffer {index}"].double(), buffer, f"{name}: buffer {index}")


def test_all_models_are_listed():
    listed = subprocess.run([TRAIN, "models"], check=True, capture_output=True, text=True).stdout
    assert [line.split()[0] for line in listed.splitlines()[1:]] == list(MODELS)


# These families take a third of the time of the others; tests/long runs the rest.
QUICK = ("vgg11", "resnet18", "shufflenet_v2_x0.5")


@pytest.mark.parametrize("name, shape", [pytest.param(name, shape, marks=() if name in QUICK else pytest.mark.long)
                                         for name, shape in zip(MODELS, (GREY, COLOR) * 7)])
def test_a_network_matches_its_reference(name, shape):
    print(f"seed {SEED}")
    check(name, *shape)


@pytest.mark.long
@pytest.mark.parametrize("name", ("vgg16", "densenet121", "shufflenet_v2_x1"))
def test_a_network_for_28_color_pixels_matches_its_reference(name):
    check(name, 3, 28, 10)
