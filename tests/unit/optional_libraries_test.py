"""CMake leaves out, requires or finds the transports ofi and ucx, as SHOAL_OFI and SHOAL_UCX say. Nothing is built."""
import json
import os
import re
import shlex
import subprocess

import pytest

import support

FILES = {"OFI": ("transports/ofi/libfabric.cc", "SHOAL_HAS_LIBFABRIC", "libfabric"), "UCX": ("transports/ucx/ucx.cc", "SHOAL_HAS_UCX", "ucx")}


def has(module):
    return subprocess.run(["pkg-config", "--exists", module], check=False).returncode == 0


class TestConfigured:
    @pytest.fixture(autouse=True)
    def new_folder(self, folder):
        self.folder = folder

    def configure(self, *options, hidden=False):
        """`hidden`: pkg-config finds neither libfabric nor UCX."""
        arguments = ["cmake", "-S", support.REPOSITORY, "-B", self.folder, "-G", "Ninja", "-DSHOAL_DEVELOPER=OFF", "-DSHOAL_TORCH=OFF",
                     "-DSHOAL_CUDA=OFF", *options]
        if hidden:
            script = os.path.join(self.folder, "pkg-config-without")
            with open(script, "w", encoding="utf-8") as file:
                file.write('#!/bin/sh\ncase "$*" in *libfabric*|*ucx*) exit 1;; esac\nexec pkg-config "$@"\n')
            os.chmod(script, 0o755)
            arguments.append(f"-DPKG_CONFIG_EXECUTABLE={script}")
        return subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)

    def commands(self):
        with open(os.path.join(self.folder, "compile_commands.json"), encoding="utf-8") as file:
            return {os.path.relpath(each["file"], support.REPOSITORY): each for each in json.load(file)}

    def check(self, done, expected):
        """`expected`: {option: whether its library is used}."""
        assert done.returncode == 0, done.stderr
        commands = self.commands()
        for option, used in expected.items():
            path, definition, _ = FILES[option]
            assert (f"-D{definition}" in shlex.split(commands[path]["command"])) == used, path
            left_out = re.search(rf"(?m)^-- .*\btransport {option.lower()}\b.*\bSHOAL_{option}\b", done.stdout)
            assert bool(left_out) != used, done.stdout
        return commands

    def test_off_leaves_them_out_and_the_stubs_compile(self):
        commands = self.check(self.configure("-DSHOAL_OFI=OFF", "-DSHOAL_UCX=OFF"), {"OFI": False, "UCX": False})
        for path, _, _ in FILES.values():
            command = shlex.split(commands[path]["command"])
            compiler = command[next(i for i, word in enumerate(command) if os.path.basename(word).startswith(("c++", "g++", "clang++"))):]
            done = subprocess.run([*compiler, "-fsyntax-only"], cwd=commands[path]["directory"], capture_output=True, text=True, timeout=120,
                                  check=False)
            assert done.returncode == 0, done.stderr

    def test_auto_takes_what_is_installed(self):
        self.check(self.configure(), {option: has(module) for option, (_, _, module) in FILES.items()})

    def test_auto_leaves_out_what_is_not_installed(self):
        self.check(self.configure(hidden=True), {"OFI": False, "UCX": False})

    @pytest.mark.parametrize("option", FILES)
    def test_on_requires_the_library(self, option):
        done = self.configure(f"-DSHOAL_{option}=ON", hidden=True)
        assert done.returncode != 0
        assert re.search(rf"SHOAL_{option}\b[\s\S]*\b{FILES[option][2]}\b", done.stderr), done.stderr
