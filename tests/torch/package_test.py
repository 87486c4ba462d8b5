"""pip install torch_plugin/python: the wheel works without the build folder, in an environment with torch only."""
import os
import re
import shutil
import subprocess
import sys

import pytest

import support

SOURCE = os.path.join(support.REPOSITORY, "torch_plugin/python")
# Beside the main build, because a compiler cache depends on paths. It is kept, so that a second run compiles changes only.
FOLDER = support.BUILD + "-wheel"
ENVIRONMENT = os.path.join(FOLDER, "environment")
PYTHON = os.path.join(ENVIRONMENT, "bin/python")
TOOLS = ("scikit-build-core==0.11.6",)
TORCHRUN = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def compiler(language):
    """The compiler of the main build. The compiler cache would miss for any other name, such as that of the compiler which built Python."""
    with open(os.path.join(support.BUILD, "CMakeCache.txt"), encoding="utf-8") as file:
        return re.search(rf"^CMAKE_{language}_COMPILER:\w+=(.+)$", file.read(), re.MULTILINE).group(1)


def run(*command, timeout=240):
    """Output of a command that must succeed, with the packages of the new environment only."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SHOAL_BUILD_DIR")}
    environment.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", CC=compiler("C"), CXX=compiler("CXX"))
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, env=environment, text=True, timeout=timeout, **both)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout[-6000:]}")
    return done.stdout


def make_environment():
    """A new environment with the packages of this one, torch among them, but without shoal."""
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    os.makedirs(FOLDER, exist_ok=True)
    run(sys.executable, "-m", "venv", "--without-pip", ENVIRONMENT)
    here = [path for path in sys.path if path.endswith("site-packages")]
    there = run(PYTHON, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip()
    with open(os.path.join(there, "torch.pth"), "w", encoding="utf-8") as file:
        file.write("\n".join(here) + "\n")


class TestPackage:
    @classmethod
    def setup_class(cls):
        make_environment()
        try:
            run(PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *TOOLS)
        except AssertionError as error:
            if "No matching distribution" in str(error) or "Connection" in str(error):
                pytest.skip(f"{TOOLS} cannot be installed: no network")
            raise
        # The flags of the main build, so that a compiler cache has all objects already.
        defines = ("CMAKE_UNITY_BUILD=ON", "SHOAL_DEVELOPER=ON", "SHOAL_BUILD_TESTS=OFF", "SHOAL_BUILD_BENCH=OFF")
        settings = [f"--config-settings=build-dir={FOLDER}", *(f"--config-settings=cmake.define.{name}" for name in defines)]
        pip = (PYTHON, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--disable-pip-version-check")
        run(*pip, *settings, SOURCE, timeout=1500)

    def test_the_wheel_has_its_libraries(self):
        script = "import shoal, os; print(os.path.dirname(shoal.__file__))"
        folder = run(PYTHON, "-c", script).splitlines()[-1]
        assert folder.startswith(ENVIRONMENT), folder
        libraries = sorted(os.listdir(os.path.join(folder, "lib")))
        kernels = ["libshoal_cuda.so"] if os.path.exists(os.path.join(support.BUILD, "lib/libshoal_cuda.so")) else []
        assert libraries == ["libshoal.so.0", "libshoal.so.0.1.0", *kernels, "libshoal_torch.so"]
        script = "import shoal; print(*{line.split()[-1] for line in open('/proc/self/maps') if 'libshoal' in line})"
        loaded = run(PYTHON, "-c", script).splitlines()[-1].split()
        assert len(loaded) == 2
        assert all(path.startswith(ENVIRONMENT) for path in loaded), loaded

    def test_the_version_matches_the_project(self):
        with open(os.path.join(support.REPOSITORY, "CMakeLists.txt"), encoding="utf-8") as file:
            version = re.search(r"project\(shoal VERSION ([0-9.]+)", file.read()).group(1)
        found = run(PYTHON, "-c", "import shoal, importlib.metadata as m; print(shoal.__version__, m.version('shoal'))").split()
        assert found[-2:] == [version, version]

    def test_another_version_of_torch_is_refused(self):
        script = "import torch; torch.__version__ = '9.9.9'\ntry:\n  import shoal\nexcept ImportError as error:\n  print(error)"
        assert "torch 9.9.9" in run(PYTHON, "-c", script)

    def test_the_example_of_the_readme_runs(self):
        with open(os.path.join(SOURCE, "README.md"), encoding="utf-8") as file:
            script = re.search(r"```python\n(.*?)```", file.read(), re.DOTALL).group(1)
        path = os.path.join(FOLDER, "example.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(script)
        assert len([line for line in script.splitlines() if line.strip()]) == 10
        output = run(*TORCHRUN, path)
        assert re.search(r"loss [0-9.]+", output), output

    def test_a_script_needs_no_import(self):
        path = os.path.join(FOLDER, "unmodified.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write("import torch.distributed as dist\ndist.init_process_group('shoal')\nprint('backend', dist.get_backend())\n"
                       "dist.destroy_process_group()\n")
        assert run(*TORCHRUN, path).count("backend shoal") == 2

    def test_a_broken_copy_only_warns(self):
        folder = run(PYTHON, "-c", "import shoal, os; print(os.path.dirname(shoal.__file__))").splitlines()[-1]
        module = next(entry.path for entry in os.scandir(folder) if entry.name.startswith("_C."))
        os.rename(module, module + ".away")
        try:
            assert 'backend "shoal"' in run(PYTHON, "-c", "import torch")
        finally:
            os.rename(module + ".away", module)
