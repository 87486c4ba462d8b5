"""pip install torch_plugin/python: a wheel, in an environment with nothing but torch, that works without the build folder."""
import os
import re
import shutil
import subprocess
import sys
import unittest

import cases

SOURCE = os.path.join(cases.REPOSITORY, "torch_plugin/python")
# Beside the main build, so that a compiler cache knows its paths. Kept: a second run compiles changes only.
FOLDER = cases.BUILD + "-wheel"
ENVIRONMENT = os.path.join(FOLDER, "environment")
PYTHON = os.path.join(ENVIRONMENT, "bin/python")
TOOLS = ("scikit-build-core==0.11.6",)
TORCHRUN = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def compiler(language):
    """The main build's: the compiler cache has nothing of any other name, such as the one that Python was built with."""
    with open(os.path.join(cases.BUILD, "CMakeCache.txt"), encoding="utf-8") as file:
        return re.search(rf"^CMAKE_{language}_COMPILER:\w+=(.+)$", file.read(), re.MULTILINE).group(1)


def run(*command, timeout=120):
    """Output of a command that must end well, in an environment where only the new one's packages can be imported."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SHOAL_BUILD_DIR")}
    environment.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", CC=compiler("C"), CXX=compiler("CXX"))
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, env=environment, text=True, timeout=timeout, **both)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout[-6000:]}")
    return done.stdout


def make_environment():
    """A new environment that sees the packages of this one, torch among them, but not shoal."""
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    os.makedirs(FOLDER, exist_ok=True)
    run(sys.executable, "-m", "venv", "--without-pip", ENVIRONMENT)
    here = [path for path in sys.path if path.endswith("site-packages")]
    there = run(PYTHON, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip()
    with open(os.path.join(there, "torch.pth"), "w", encoding="utf-8") as file:
        file.write("\n".join(here) + "\n")


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        make_environment()
        try:
            run(PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *TOOLS)
        except AssertionError as error:
            if "No matching distribution" in str(error) or "Connection" in str(error):
                raise unittest.SkipTest(f"{TOOLS} cannot be had: no network") from error
            raise
        # As strict as the main build, so that a compiler cache has everything already.
        defines = ("SHOAL_DEVELOPER=ON", "SHOAL_BUILD_TESTS=OFF", "SHOAL_BUILD_BENCH=OFF")
        settings = [f"--config-settings=build-dir={FOLDER}", *(f"--config-settings=cmake.define.{name}" for name in defines)]
        pip = (PYTHON, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--disable-pip-version-check")
        run(*pip, *settings, SOURCE, timeout=1500)

    def test_holds_its_libraries(self):
        script = "import shoal, os; print(os.path.dirname(shoal.__file__))"
        folder = run(PYTHON, "-c", script).splitlines()[-1]
        self.assertTrue(folder.startswith(ENVIRONMENT), folder)
        libraries = sorted(os.listdir(os.path.join(folder, "lib")))
        self.assertEqual(libraries, ["libshoal.so.0", "libshoal.so.0.1.0", "libshoal_torch.so"])
        script = "import shoal; print(*{line.split()[-1] for line in open('/proc/self/maps') if 'libshoal' in line})"
        loaded = run(PYTHON, "-c", script).splitlines()[-1].split()
        self.assertEqual(len(loaded), 2)
        self.assertTrue(all(path.startswith(ENVIRONMENT) for path in loaded), loaded)

    def test_the_version_is_that_of_the_project(self):
        with open(os.path.join(cases.REPOSITORY, "CMakeLists.txt"), encoding="utf-8") as file:
            version = re.search(r"project\(shoal VERSION ([0-9.]+)", file.read()).group(1)
        found = run(PYTHON, "-c", "import shoal, importlib.metadata as m; print(shoal.__version__, m.version('shoal'))").split()
        self.assertEqual(found[-2:], [version, version])

    def test_says_which_torch_it_was_built_for(self):
        script = "import torch; torch.__version__ = '9.9.9'\ntry:\n  import shoal\nexcept ImportError as error:\n  print(error)"
        self.assertIn("this is torch 9.9.9", run(PYTHON, "-c", script))

    def test_the_example_of_the_readme_runs(self):
        with open(os.path.join(SOURCE, "README.md"), encoding="utf-8") as file:
            script = re.search(r"```python\n(.*?)```", file.read(), re.DOTALL).group(1)
        path = os.path.join(FOLDER, "example.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(script)
        self.assertEqual(len([line for line in script.splitlines() if line.strip()]), 10)
        output = run(*TORCHRUN, path)
        self.assertRegex(output, r"loss [0-9.]+")


if __name__ == "__main__":
    cases.main()
