"""An installed copy is found by a three-line CMake project and by pkg-config."""
import os
import re
import shutil
import subprocess
import tempfile

import pytest

import support

# The C++ example of the repository's README.
PROGRAM = """#include <cstdio>
#include <shoal/communicator.h>
int main() {
  auto communicator = shoal::Communicator::create();
  if (!communicator.ok()) return std::fprintf(stderr, "%s\\n", communicator.status().message().c_str()), 1;
  float value = 42;
  const shoal::Status status =
      (*communicator)->all_reduce(&value, &value, 1, shoal::DataType::float32, shoal::ReduceOp::sum);
  std::printf("%d rank, %g, %s\\n", (*communicator)->size(), static_cast<double>(value), status.to_string().c_str());
}
"""
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(user CXX)
find_package(shoal 0.1 REQUIRED)
add_executable(user user.cc)
target_link_libraries(user shoal::shoal)
"""


class TestInstalled:
    @classmethod
    def setup_class(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.prefix = os.path.join(cls.folder.name, "moved")
        cls.source = os.path.join(cls.folder.name, "user")
        os.mkdir(cls.source)
        with open(os.path.join(cls.source, "user.cc"), "w", encoding="ascii") as file:
            file.write(PROGRAM)
        made = os.path.join(cls.folder.name, "made")
        cls.run_quietly("cmake", "--install", support.BUILD, "--prefix", made)
        os.rename(made, cls.prefix)  # no file in it may contain the old path

    @classmethod
    def teardown_class(cls):
        cls.folder.cleanup()

    @staticmethod
    def run_quietly(*command, **environment):
        alone = {name: value for name, value in os.environ.items() if not name.startswith(("SHOAL_", "OMPI_"))}
        done = subprocess.run(command, capture_output=True, text=True, env=alone | environment, check=False)
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout

    def library_folder(self):
        return next(root for root, _, files in os.walk(self.prefix) if "libshoal.so" in files)

    def test_cmake_project_uses_installed_library(self):
        with open(os.path.join(self.source, "CMakeLists.txt"), "w", encoding="ascii") as file:
            file.write(PROJECT)
        build = os.path.join(self.folder.name, "build")
        self.run_quietly("cmake", "-G", "Ninja", "-S", self.source, "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}")
        self.run_quietly("cmake", "--build", build)
        assert self.run_quietly(os.path.join(build, "user")) == "1 rank, 42, ok\n"

    def test_pkg_config_program_uses_installed_library(self):
        if not shutil.which("pkg-config"):
            pytest.skip("no pkg-config")
        library = self.library_folder()
        flags = self.run_quietly("pkg-config", "--cflags", "--libs", "shoal", PKG_CONFIG_PATH=os.path.join(library, "pkgconfig")).split()
        program = os.path.join(self.folder.name, "by-pkg-config")
        self.run_quietly("g++", "-std=c++20", os.path.join(self.source, "user.cc"), "-o", program, *flags)
        assert self.run_quietly(program, LD_LIBRARY_PATH=library) == "1 rank, 42, ok\n"

    def test_installed_programs_run(self):
        for program in ("shoal", "shoal_perf"):
            self.run_quietly(os.path.join(self.prefix, "bin", program), "--help")

    def test_installed_headers_find_each_other(self):
        include = os.path.join(self.prefix, "include")
        headers = [os.path.join(root, name) for root, _, files in os.walk(include) for name in files]
        assert len(headers) > 10
        missing = []
        for header in headers:
            with open(header, encoding="utf-8") as file:
                text = file.read()
            for name in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE):  # of the component torch
                if not os.path.exists(os.path.join(include, "shoal/torch", name)):
                    missing.append(f"{os.path.relpath(header, include)}: {name}")
            for name in re.findall(r"^#include <(shoal/[^>]+)>", text, re.MULTILINE):
                if not os.path.exists(os.path.join(include, name)):
                    missing.append(f"{os.path.relpath(header, include)}: {name}")
        assert missing == []
