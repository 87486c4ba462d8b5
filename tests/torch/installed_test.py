"""A project outside of the tree finds an installed copy by find_package(shoal COMPONENTS torch), and trains with it on several ranks."""
import os
import re
import shutil
import subprocess
import sys
import unittest

import cases

SOURCE = os.path.join(cases.REPOSITORY, "tests/torch/outside")
# Beside the main build, and kept: torch's headers take half a minute, a second run compiles nothing.
FOLDER = cases.BUILD + "-outside"
PREFIX = os.path.join(FOLDER, "prefix")
BUILD = os.path.join(FOLDER, "build")
SHOAL = os.path.join(cases.BUILD, "bin/shoal")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python")


def run(*command, timeout=120):
    """What a command says, and its exit status."""
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("SHOAL_", "OMPI_", "PYTHONPATH"))}
    alone.update(OMP_NUM_THREADS="1", XDG_CACHE_HOME=os.path.join(FOLDER, "no-cache"))
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, env=alone, text=True, timeout=timeout, check=False, **both)
    return done.stdout, done.returncode


def run_well(*command, timeout=120):
    output, status = run(*command, timeout=timeout)
    if status != 0:
        raise AssertionError(f"{' '.join(command)}: exit status {status}\n{output[-6000:]}")
    return output


def configure(folder, *options):
    import torch
    launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    prefix = f"-DCMAKE_PREFIX_PATH={PREFIX};{torch.utils.cmake_prefix_path}"
    return run("cmake", "-G", "Ninja", "-S", SOURCE, "-B", folder, prefix, "-DCMAKE_BUILD_TYPE=Release", *launcher, *options)


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        made = PREFIX + "-made"
        for folder in (made, PREFIX):
            shutil.rmtree(folder, ignore_errors=True)
        run_well("cmake", "--install", cases.BUILD, "--prefix", made)
        os.rename(made, PREFIX)  # nothing in it may know where it was
        output, status = configure(BUILD)
        if status != 0:
            raise AssertionError(output[-6000:])
        run_well("cmake", "--build", BUILD, timeout=600)

    def ranks(self, *command):
        """(rank, ranks, first loss, last loss, weights) of every rank."""
        output = run_well(*command, os.path.join(BUILD, "mlp"))
        found = re.findall(r"rank (\d+) of (\d+): loss ([\d.]+) to ([\d.]+), weights ([\d.]+)", output)
        return sorted((int(rank), int(size), float(first), float(last), float(weights)) for rank, size, first, last, weights in found)

    def test_trains_as_one_process_does(self):
        (_, size, first, last, weights), = self.ranks()
        self.assertEqual(size, 1)
        self.assertLess(last, first / 2)
        for launcher in ((SHOAL, "run", "-n", "2", "--"), (SHOAL, "run", "-n", "3", "--"), (*TORCHRUN, "--nproc-per-node=2")):
            with self.subTest(launcher=launcher[1:]):
                found = self.ranks(*launcher)
                self.assertEqual([rank[0] for rank in found], list(range(found[0][1])))
                self.assertGreater(len(found), 1)
                for _, size, _, _, trained in found:
                    self.assertEqual(size, len(found))
                    self.assertAlmostEqual(trained, weights, delta=1e-4 * weights)
                self.assertEqual(len({rank[4] for rank in found}), 1, "every rank has the same weights")
                mean = sum(rank[3] for rank in found) / len(found)
                self.assertAlmostEqual(mean, last, delta=1e-4 * last)

    def test_says_why_the_component_is_missing(self):
        file = next(os.path.join(root, "shoalTorch.cmake") for root, _, files in os.walk(PREFIX) if "shoalTorch.cmake" in files)
        elsewhere = os.path.join(FOLDER, "unusable")
        with open(file, encoding="utf-8") as opened:
            text = opened.read()
        cases_of = (("is not there", None), ("of another version", re.sub(r'VERSION_EQUAL "[\d.]+"', 'VERSION_EQUAL "1.0"', text)))
        try:
            for name, changed in cases_of:
                with self.subTest(name):
                    os.remove(file)
                    if changed is not None:
                        with open(file, "w", encoding="utf-8") as opened:
                            opened.write(changed)
                    shutil.rmtree(elsewhere, ignore_errors=True)
                    output, status = configure(elsewhere)
                    self.assertNotEqual(status, 0)
                    wanted = "built without LibTorch" if changed is None else "component torch was built for LibTorch"
                    self.assertIn(wanted, " ".join(output.split()))
                    with open(file, "w", encoding="utf-8") as opened:
                        opened.write(text)
        finally:
            with open(file, "w", encoding="utf-8") as opened:
                opened.write(text)
            shutil.rmtree(elsewhere, ignore_errors=True)


if __name__ == "__main__":
    cases.main()
