"""The sentence and the rows that bench/report.py makes from a training; the page begins with the sentence."""
import os
import sys
from unittest import mock

import pytest

import support

sys.path[:0] = [os.path.join(support.REPOSITORY, "bench"), os.path.join(support.REPOSITORY, "bench", "train", "page")]
import report


def result(backend, images_per_s, losses=(2.0, 1.5), **fields):
    return {"backend": backend, "images_per_s": images_per_s, "step_loss": list(losses), "model": "resnet18", "dataset": "cifar10",
            "batch_per_rank": 8, "nodes": 2, "ranks": 2, "rate": "1gbit"} | fields


def headline(*results):
    return report.headline({"results": list(results)})


def test_the_sentence_has_every_peer():
    assert headline(result("shoal", 35.0), result("gloo", 28.0), result("mpi", 20.0)) == (
        "Training ResNet18 on 2 emulated hosts with 1 rank each, joined at 1 Gbit/s, is 1.25 times as fast with shoal as with Gloo "
        "and 1.75 times as fast as with Open MPI, with the same loss in every step.")


def test_the_sentence_says_where_shoal_is_slower():
    assert ("is only 0.90 times as fast with shoal as with Gloo and 1.20 times as fast as with Open MPI" in
            headline(result("shoal", 36.0), result("gloo", 40.0), result("mpi", 30.0)))
    assert "is 1.00 times as fast" in headline(result("shoal", 9.98), result("gloo", 10.0))  # not slower by what is shown


def test_the_sentence_has_the_shape_and_the_rate():
    shape = {"ranks": 8, "nodes": 4, "rate": "500mbit", "model": "vgg16"}
    assert headline(result("gloo", 1.0, **shape), result("shoal", 2.0, **shape)).startswith(
        "Training vgg16 on 4 emulated hosts with 2 ranks each, joined at 500 Mbit/s, is 2.00 times")


@pytest.mark.parametrize("losses, words", (
    ((2.0, 1.5), ", with the same loss in every step."), ((2.0, 1.53), ", with losses that differ by about 2 % at most."),
    ((2.000002, 1.5), ", with losses that differ by about 0.0001 % at most."), ((2.0, None), "as with Gloo."), ((), "as with Gloo.")))
def test_the_sentence_compares_measured_losses(losses, words):
    assert headline(result("shoal", 2.0), result("gloo", 1.0, losses)).endswith(words)


def test_the_last_epoch_of_each_backend_counts():
    epochs = (result("shoal", 1.0), result("gloo", 1.0), result("shoal", 3.0), result("gloo", 2.0))
    assert "is 1.50 times as fast" in headline(*epochs)


def test_a_training_has_a_row_for_each_peer():
    rows = report.training_rows({"results": [result("shoal", 35.0), result("gloo", 28.0), result("mpi", 50.0)]})
    assert rows == [("2 hosts x 1 rank", "training resnet18, cifar10, batch 8", "35.0 images/s", "28.0 images/s", "Gloo", "1.25", "-"),
                    ("2 hosts x 1 rank", "training resnet18, cifar10, batch 8", "35.0 images/s", "50.0 images/s", "Open MPI", "0.70", "-")]


def test_the_summary_has_the_sentence_and_one_row_for_all_peers():
    rows = report.training_rows({"results": [result("shoal", 35.0), result("gloo", 28.0), result("mpi", 50.0)]})
    text = report.summary_page("Training is fast.", rows)
    assert text.startswith("# bench/demo\n\nTraining is fast.\n")
    assert "| 2 hosts x 1 rank | training resnet18, cifar10, batch 8 | 35.0 images/s | 0.70 x | 1.25 x |" in text


def test_the_page_begins_with_the_sentence(folder, monkeypatch):
    figures = mock.MagicMock()  # this Python may have no matplotlib
    figures.to_svg.return_value = "<svg />"
    monkeypatch.setitem(sys.modules, "figures", figures)
    import page
    results = os.path.join(support.REPOSITORY, "bench", "results", "demo", "training-resnet18.json")
    monkeypatch.setattr(sys, "argv", ["page.py", results, "--out", folder, "--headline", "1 < 2 emulated hosts."])
    page.main()
    with open(os.path.join(folder, "index.html"), encoding="utf-8") as file:
        assert "<body>\n<h1>1 &lt; 2 emulated hosts.</h1>\n" in file.read()
