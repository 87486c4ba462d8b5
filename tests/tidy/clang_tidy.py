"""Runs clang-tidy-14 with .clang-tidy of this tree: clang_tidy.py BUILD FILE...

BUILD is a build folder with compile_commands.json. Its commands are for GCC with precompiled headers and, in some targets, for several files
that are compiled as one. clang-tidy gets commands without these: one for each file. FILEs are paths from the root
of the tree. Prints the findings. Exit status 1 where there are any.
"""
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = "clang-tidy-14"
FOLDERS = ("bench", "include", "src", "tests", "torch_plugin", "transports")  # not kernels/: clang 14 does not know this CUDA
SOURCES = (".cc", ".c")
FINDING = re.compile(r"^\S+:\d+:\d+: (?:warning|error|fatal error): ", re.MULTILINE)


def git(*arguments):
    """Lines of output. None if git fails: there is no repository, or no such commit."""
    done = subprocess.run(["git", "-c", "safe.directory=*", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else None


def sources():
    """C and C++ files of the tree, from its root."""
    listed = git("ls-files", "-co", "--exclude-standard", "--", *FOLDERS) or []
    return sorted({path for path in listed if path.endswith(SOURCES) and os.path.exists(os.path.join(REPOSITORY, path))})


def for_clang(words):
    """A command for GCC without its warnings (`tests/long clang` has those of clang) and without its precompiled header."""
    kept, words = [], list(words)
    while words:
        word = words.pop(0)
        if word == "-include" and "cmake_pch" in words[0]:
            words.pop(0)
        elif not word.startswith("-W"):
            kept.append(word)
    first = next(i for i, word in enumerate(kept) if os.path.basename(word).startswith(("c++", "cc", "g++", "gcc", "clang")) and "ccache" not in word)
    return kept[first:]  # before it: the compiler cache and its settings


def included_by(unity_file):
    """The files that CMake compiles as this one."""
    with open(unity_file, encoding="utf-8") as file:
        return re.findall(r'^#include "(/[^"]+)"', file.read(), re.MULTILINE)


def compile_commands(build):
    """{path from the root of the tree: entry of compile_commands.json}, one for each file; the first one if targets share a file."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        entries = json.load(file)
    found = {}
    for entry in entries:
        is_unity = os.path.basename(entry["file"]).startswith("unity_")
        for path in included_by(entry["file"]) if is_unity else [entry["file"]]:
            name = os.path.relpath(path, REPOSITORY)
            if name.endswith(SOURCES) and name not in found:
                words = [path if word == entry["file"] else word for word in for_clang(shlex.split(entry["command"]))]
                found[name] = {"directory": entry["directory"], "file": path, "arguments": words}
    return found


def split_known(paths, build):
    """Those of `paths` that the build compiles, and the others."""
    commands = compile_commands(build)
    return [path for path in paths if path in commands], [path for path in paths if path not in commands]


def findings(paths, build, config=os.path.join(REPOSITORY, ".clang-tidy"), analyze=True):
    """The findings of clang-tidy in these files and the headers that they include, as text; empty if there are none.

    `analyze`: with clang's static analyzer, which takes most of the time.
    """
    checks = [] if analyze else ["--checks=-clang-analyzer-*"]
    commands = compile_commands(build)
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "compile_commands.json"), "w", encoding="utf-8") as file:
            json.dump([commands[path] for path in paths], file)
        done = subprocess.run([PROGRAM, "-p", folder, "--quiet", f"--config-file={config}", *checks, *(commands[path]["file"] for path in paths)],
                              cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if FINDING.search(done.stdout):
        return done.stdout.replace(REPOSITORY + "/", "")
    return done.stderr if done.returncode else ""


def main():
    found = findings(sys.argv[2:], sys.argv[1])
    print(found or f"{len(sys.argv) - 2} files without findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
