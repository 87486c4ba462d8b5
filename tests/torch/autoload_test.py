"""Programs use the backend "shoal" without `import shoal` if the package is installed. A broken copy only warns."""
import os
import shutil
import subprocess
import sys

import pytest

import support

PACKAGES = os.path.join(support.BUILD, "python")
NAMES_SHOAL = """
import sys
import torch, torch.distributed as dist
dist.init_process_group("shoal", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)
tensor = torch.ones(3)
dist.all_reduce(tensor)
print("sum", tensor.sum().item(), dist.get_backend())
dist.destroy_process_group()
"""
GLOO = """
import sys
import torch.distributed as dist
for backend in ("cpu:gloo", "cpu:gloo,cuda:gloo"):
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    print("group", dist.group.WORLD.name())
    dist.destroy_process_group()
print("listed", list(dist.Backend._plugins), dist.is_backend_available("shoal"))
with open("/proc/self/maps") as file:
    print("loaded", "libshoal" in file.read(), "shoal" in sys.modules)
"""
NAMES_SHOAL_ALONE = """
import torch.distributed as dist
print("torch is here")
try:
    dist.init_process_group("shoal", store=dist.HashStore(), rank=0, world_size=1)
except ImportError as error:
    print("refused", error)
"""


def start(script, *arguments, packages=PACKAGES, options=(), **environment):
    command = [sys.executable, *options, "-c", script, *arguments]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": packages, "OMP_NUM_THREADS": "1"} | environment, text=True, **both)


def output(process):
    text = process.communicate(timeout=240)[0]
    assert process.returncode == 0, text
    return text


def run(*arguments, **options):
    return output(start(*arguments, **options))


def without_module(packages):
    os.remove(next(entry.path for entry in os.scandir(os.path.join(packages, "shoal")) if entry.name.startswith("_C.")))


def without_build_file(packages):
    os.remove(os.path.join(packages, "shoal_autoload/_build.py"))


def for_another_torch(packages):
    with open(os.path.join(packages, "shoal_autoload/_build.py"), "w", encoding="ascii") as file:
        file.write('TORCH = "1.9"\nVERSION = "0.1.0"\n')


def with_junk_as_module(packages):
    path = next(entry.path for entry in os.scandir(os.path.join(packages, "shoal")) if entry.name.startswith("_C."))
    with open(path, "wb") as file:
        file.write(b"junk")


class TestInstalledCopy:
    def test_a_script_needs_only_torch_imported(self, folder):
        ranks = [start(NAMES_SHOAL, os.path.join(folder, "store"), str(rank)) for rank in range(2)]
        assert all("sum 6.0 shoal" in output(rank) for rank in ranks)

    def test_gloo_programs_do_not_load_shoal(self):
        lines = run(GLOO).splitlines()
        assert [line for line in lines if line.startswith("group")] == 2 * ["group gloo"]
        assert lines[-2:] == ["listed [] True", "loaded False False"]

    def test_torchs_variable_turns_it_off(self):
        text = start(NAMES_SHOAL_ALONE, TORCH_DEVICE_BACKEND_AUTOLOAD="0").communicate(timeout=240)[0]
        assert "torch is here" in text and "refused" not in text


class TestBrokenCopy:
    @pytest.mark.parametrize("damage, options", ((without_module, ()), (without_build_file, ()), (for_another_torch, ("-W", "error"))))
    def test_a_broken_copy_warns_and_fails_only_when_used(self, folder, damage, options):
        packages = os.path.join(folder, "python")
        shutil.copytree(PACKAGES, packages)
        damage(packages)
        lines = run(NAMES_SHOAL_ALONE, packages=packages, options=options).splitlines()
        assert 'backend "shoal"' in lines[0]
        assert [line.split()[0] for line in lines[-2:]] == ["torch", "refused"], lines

    def test_an_unloadable_module_fails_only_when_used(self, folder):
        packages = os.path.join(folder, "python")
        shutil.copytree(PACKAGES, packages)
        with_junk_as_module(packages)
        lines = run(NAMES_SHOAL_ALONE, packages=packages).splitlines()
        assert [line.split()[0] for line in lines[-2:]] == ["torch", "refused"], lines
        assert "_C." in lines[-1], lines
