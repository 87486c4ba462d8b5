"""A CMake project outside of the tree finds an installed copy by find_package(shoal COMPONENTS torch) and trains on several ranks."""
import os
import re
import shutil
import subprocess
import sys

import pytest

import support

SOURCE = os.path.join(support.REPOSITORY, "tests/torch/outside")
# Beside the main build. It is kept, because torch's headers take half a minute to compile.
FOLDER = support.BUILD + "-outside"
PREFIX = os.path.join(FOLDER, "prefix")
BUILD = os.path.join(FOLDER, "build")
SHOAL = os.path.join(support.BUILD, "bin/shoal")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python")


def run(*command, timeout=240):
    """(output, exit status) of a command."""
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("SHOAL_", "OMPI_", "PYTHONPATH"))}
    alone.update(OMP_NUM_THREADS="1", XDG_CACHE_HOME=os.path.join(FOLDER, "no-cache"))
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, env=alone, text=True, timeout=timeout, check=False, **both)
    return done.stdout, done.returncode


def run_or_fail(*command, timeout=240):
    output, status = run(*command, timeout=timeout)
    if status != 0:
        raise AssertionError(f"{' '.join(command)}: exit status {status}\n{output[-6000:]}")
    return output


def configure(folder, *options):
    import torch
    launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    prefix = f"-DCMAKE_PREFIX_PATH={PREFIX};{torch.utils.cmake_prefix_path}"
    return run("cmake", "-G", "Ninja", "-S", SOURCE, "-B", folder, prefix, "-DCMAKE_BUILD_TYPE=Release", *launcher, *options)


class TestInstalled:
    @classmethod
    def setup_class(cls):
        made = PREFIX + "-made"
        for folder in (made, PREFIX):
            shutil.rmtree(folder, ignore_errors=True)
        run_or_fail("cmake", "--install", support.BUILD, "--prefix", made)
        os.rename(made, PREFIX)  # no file in it may contain the old path
        output, status = configure(BUILD)
        if status != 0:
            raise AssertionError(output[-6000:])
        run_or_fail("cmake", "--build", BUILD, timeout=600)

    def ranks(self, *command):
        """(rank, ranks, first loss, last loss, weights) of every rank."""
        output = run_or_fail(*command, os.path.join(BUILD, "mlp"))
        found = re.findall(r"rank (\d+) of (\d+): loss ([\d.]+) to ([\d.]+), weights ([\d.]+)", output)
        return sorted((int(rank), int(size), float(first), float(last), float(weights)) for rank, size, first, last, weights in found)

    def test_one_rank_trains(self):
        (_, size, first, last, _), = self.ranks()
        assert size == 1
        assert last < first / 2

    @pytest.mark.parametrize("launcher", ((SHOAL, "run", "-n", "2", "--"), (SHOAL, "run", "-n", "3", "--"), (*TORCHRUN, "--nproc-per-node=2")),
                             ids=("shoal-run-2", "shoal-run-3", "torchrun-2"))
    def test_several_ranks_match_one_process(self, launcher):
        (_, _, _, last, weights), = self.ranks()
        found = self.ranks(*launcher)
        assert [rank[0] for rank in found] == list(range(found[0][1]))
        assert len(found) > 1
        for _, size, _, _, trained in found:
            assert size == len(found)
            assert trained == pytest.approx(weights, abs=1e-4 * weights)
        assert len({rank[4] for rank in found}) == 1, "the weights of ranks differ"
        mean = sum(rank[3] for rank in found) / len(found)
        assert mean == pytest.approx(last, abs=1e-4 * last)

    def losses(self, ranks):
        """{step: the losses that the ranks of a pipeline print, as text}."""
        output = run_or_fail(SHOAL, "run", "-n", str(ranks), "--", os.path.join(BUILD, "pipeline"))
        found = re.findall(r"rank \d+ of (\d+), step (\d+): loss (\S+)", output)
        assert {size for size, _, _ in found} == {str(ranks)}
        return {step: [loss for _, at, loss in found if at == step] for _, step, _ in found}

    def test_pipeline_of_any_length_has_the_same_losses(self):
        alone = self.losses(1)
        assert float(alone["4"][0]) < float(alone["0"][0])
        for ranks in (2, 4):
            found = self.losses(ranks)
            assert {step: [loss] * ranks for step, (loss,) in alone.items()} == found

    def test_lines_of_the_guide_are_in_the_program(self):
        with open(os.path.join(support.REPOSITORY, "torch_plugin/parallel/guide.md"), encoding="utf-8") as file:
            guide = re.search(r"```cpp\n(.*?)```", file.read(), re.DOTALL)[1]
        with open(os.path.join(SOURCE, "pipeline.cc"), encoding="utf-8") as file:
            program = [line.strip() for line in file]
        lines = [line.strip() for line in guide.splitlines() if line.strip()]
        assert len(lines) > 10
        assert [line for line in lines if line not in program] == []

    @pytest.mark.parametrize("built_for, expected", ((None, "without LibTorch"), ("1.0", "LibTorch 1.0")), ids=("no-file", "another-version"))
    def test_a_missing_component_is_an_error(self, built_for, expected):
        """The file of the component is missing, or it was built for another LibTorch."""
        file = next(os.path.join(root, "shoalTorch.cmake") for root, _, files in os.walk(PREFIX) if "shoalTorch.cmake" in files)
        elsewhere = os.path.join(FOLDER, "unusable")
        with open(file, encoding="utf-8") as opened:
            text = opened.read()
        version = re.search(r'VERSION_EQUAL "([\d.]+)"', text)[1]
        try:
            os.remove(file)
            if built_for is not None:
                with open(file, "w", encoding="utf-8") as opened:
                    opened.write(text.replace(version, built_for))
            shutil.rmtree(elsewhere, ignore_errors=True)
            output, status = configure(elsewhere)
            assert status != 0
            assert expected in " ".join(output.split())  # CMake breaks lines
        finally:
            with open(file, "w", encoding="utf-8") as opened:
                opened.write(text)
            shutil.rmtree(elsewhere, ignore_errors=True)
