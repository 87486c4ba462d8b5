"""The transports ofi and ucx are left out, demanded or found at configure time, as SHOAL_OFI and SHOAL_UCX say. Nothing is built."""
import json
import os
import shlex
import subprocess
import tempfile
import unittest

import cases

FILES = {"OFI": ("transports/ofi/libfabric.cc", "SHOAL_HAS_LIBFABRIC", "libfabric"), "UCX": ("transports/ucx/ucx.cc", "SHOAL_HAS_UCX", "ucx")}


def has(module):
    return subprocess.run(["pkg-config", "--exists", module], check=False).returncode == 0


class Configured(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def configure(self, *options, hidden=False):
        """`hidden`: pkg-config knows neither libfabric nor UCX."""
        arguments = ["cmake", "-S", cases.REPOSITORY, "-B", self.folder.name, "-G", "Ninja", "-DSHOAL_DEVELOPER=OFF", "-DSHOAL_TORCH=OFF",
                     "-DSHOAL_CUDA=OFF", *options]
        if hidden:
            script = os.path.join(self.folder.name, "pkg-config-without")
            with open(script, "w", encoding="utf-8") as file:
                file.write('#!/bin/sh\ncase "$*" in *libfabric*|*ucx*) exit 1;; esac\nexec pkg-config "$@"\n')
            os.chmod(script, 0o755)
            arguments.append(f"-DPKG_CONFIG_EXECUTABLE={script}")
        return subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)

    def commands(self):
        with open(os.path.join(self.folder.name, "compile_commands.json"), encoding="utf-8") as file:
            return {os.path.relpath(each["file"], cases.REPOSITORY): each for each in json.load(file)}

    def check(self, done, expected):
        """`expected`: {option: whether its library is used}."""
        self.assertEqual(done.returncode, 0, done.stderr)
        commands = self.commands()
        for option, used in expected.items():
            path, definition, _ = FILES[option]
            self.assertEqual(f"-D{definition}" in shlex.split(commands[path]["command"]), used, path)
            self.assertEqual(f"the transport {option.lower()} is left out" in done.stdout, not used, done.stdout)
        return commands

    def test_off_leaves_them_out_and_what_stands_in_compiles(self):
        commands = self.check(self.configure("-DSHOAL_OFI=OFF", "-DSHOAL_UCX=OFF"), {"OFI": False, "UCX": False})
        for path, _, _ in FILES.values():
            command = shlex.split(commands[path]["command"])
            compiler = command[next(i for i, word in enumerate(command) if os.path.basename(word).startswith(("c++", "g++", "clang++"))):]
            done = subprocess.run([*compiler, "-fsyntax-only"], cwd=commands[path]["directory"], capture_output=True, text=True, timeout=120,
                                  check=False)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_auto_takes_what_there_is(self):
        self.check(self.configure(), {option: has(module) for option, (_, _, module) in FILES.items()})

    def test_auto_goes_without_what_there_is_not(self):
        self.check(self.configure(hidden=True), {"OFI": False, "UCX": False})

    def test_on_demands_them(self):
        for option, (_, _, module) in FILES.items():
            done = self.configure(f"-DSHOAL_{option}=ON", hidden=True)
            self.assertNotEqual(done.returncode, 0)
            self.assertRegex(done.stderr, rf"SHOAL_{option} is ON, but there is no\s+{module}")
            self.configure(f"-DSHOAL_{option}=AUTO", hidden=True)


if __name__ == "__main__":
    cases.main()
