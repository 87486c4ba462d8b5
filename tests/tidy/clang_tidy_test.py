"""clang-tidy has no findings in C and C++ files that changed lately. `tests/long clang-tidy` checks all files, with the static analyzer too.

SHOAL_TIDY_BASE=COMMIT: files that changed since this commit; HEAD stands for uncommitted changes only.
"""
import json
import os
import random
import re
import shutil

import pytest

import clang_tidy
import support

FILES = 1  # a large file takes half a minute of processor time; one with PyTorch's headers takes two, and is left to tests/long
COMMITS = 10


def base():
    """The commit to compare with: the given one, else the merge base with origin/main, else the tenth commit before HEAD."""
    if given := os.environ.get("SHOAL_TIDY_BASE"):
        return given
    fork = clang_tidy.git("merge-base", "HEAD", "origin/main")
    if fork and fork != clang_tidy.git("rev-parse", "HEAD"):
        return fork[0]
    return clang_tidy.git("rev-list", "--first-parent", f"--max-count={COMMITS + 1}", "HEAD")[-1]


def changed_paths():
    """Two lists: paths with uncommitted changes, and paths that commits since base() changed."""
    uncommitted = clang_tidy.git("diff", "--name-only", "HEAD") + clang_tidy.git("ls-files", "-o", "--exclude-standard")
    committed = clang_tidy.git("log", "--format=", "--name-only", f"{base()}..HEAD")
    if committed is None:
        pytest.fail(f"SHOAL_TIDY_BASE={os.environ.get('SHOAL_TIDY_BASE')} is no commit of this clone")
    return uncommitted, committed


def cheap_sources(commands):
    """The files of the tree that `commands`, of clang_tidy.compile_commands(), compile without PyTorch's headers."""
    return {path for path, entry in commands.items() if not any("/torch/include" in word for word in entry["arguments"])}


def source_of(path, sources):
    """The file to compile for a changed one: itself; for a header the source of its name, else one that includes it. None without such a file."""
    if path in sources:
        return path
    if not path.endswith(".h") or not path.startswith(clang_tidy.FOLDERS):
        return None
    if path[:-1] + "cc" in sources:
        return path[:-1] + "cc"
    name = path.removeprefix("include/")
    including = re.compile(rf'^#include ["<](?:{re.escape(path)}|{re.escape(name)})[">]', re.MULTILINE)
    for source in sorted(sources, key=lambda source: (os.path.dirname(source) != os.path.dirname(path), source)):
        with open(os.path.join(support.REPOSITORY, source), encoding="utf-8") as file:
            if including.search(file.read()):
                return source
    return None


def choose(uncommitted, committed, sources, seed):
    """The files to check, at most FILES, those with uncommitted changes first; and how many are left out. Another seed takes others."""
    order = random.Random(seed)
    chosen = []
    for paths in (uncommitted, committed):
        files = sorted({source for path in set(paths) if (source := source_of(path, sources))} - set(chosen))
        order.shuffle(files)
        chosen += files
    return chosen[:FILES], max(0, len(chosen) - FILES)


class TestChangedFiles:
    def test_changed_files_have_no_findings(self):
        if not shutil.which(clang_tidy.PROGRAM):
            pytest.skip("no clang-tidy-14 (bench/setup test-packages)")
        head = clang_tidy.git("rev-parse", "HEAD")
        if not head:
            pytest.skip("no git repository, so changed files are unknown")
        sources = cheap_sources(clang_tidy.compile_commands(support.BUILD)) & set(clang_tidy.sources())
        files, left_out = choose(*changed_paths(), sources, head[0])
        print(f"{len(files)} files, chosen by the commit {head[0]}; {left_out} left out (tests/long clang-tidy checks all)")
        found = clang_tidy.findings(files, support.BUILD, analyze=False) if files else ""
        if found:
            pytest.fail("\n" + found, pytrace=False)


class TestChecker:
    """clang-tidy gets commands that it accepts, for the right files, and its findings are reported."""

    def test_commands_omit_options_that_clang_rejects(self):
        words = ["/usr/bin/cmake", "-E", "env", "CCACHE_NOHASHDIR=1", "/usr/bin/ccache", "/usr/bin/c++", "-DX", "-Winvalid-pch", "-include",
                 "/b/cmake_pch.hxx", "-include", "x.h", "-Wno-restrict", "-c", "x.cc"]
        assert clang_tidy.for_clang(words) == ["/usr/bin/c++", "-DX", "-include", "x.h", "-c", "x.cc"]

    def test_each_file_of_unity_source_is_checked_alone(self, folder):
        unity = os.path.join(folder, "unity_0_cxx.cxx")
        paths = [os.path.join(support.REPOSITORY, name) for name in ("src/cli/run.cc", "src/cli/env.cc")]
        with open(unity, "w", encoding="utf-8") as file:
            file.write("".join(f'#include "{path}"\n' for path in paths))
        with open(os.path.join(folder, "compile_commands.json"), "w", encoding="utf-8") as file:
            json.dump([{"directory": folder, "file": unity, "command": f"c++ -DX -c {unity}"}], file)
        commands = clang_tidy.compile_commands(folder)
        assert [commands[name]["arguments"] for name in ("src/cli/run.cc", "src/cli/env.cc")] == [["c++", "-DX", "-c", path] for path in paths]

    def test_header_is_checked_in_source_that_includes_it(self):
        sources = {"src/base/status.cc", "src/trust/proof.cc", "src/progress/progress_engine.cc"}
        assert source_of("src/trust/proof.h", sources) == "src/trust/proof.cc"
        assert source_of("src/progress/drive.h", sources) == "src/progress/progress_engine.cc"
        assert source_of("include/shoal/status.h", sources) == "src/base/status.cc"
        assert source_of("README.md", sources) is None

    def test_files_with_headers_of_pytorch_are_left_out(self):
        commands = {"src/a.cc": {"arguments": ["c++", "-Isrc", "-c", "src/a.cc"]},
                    "torch_plugin/b.cc": {"arguments": ["c++", "-isystem", "/venv/torch/include", "-c", "torch_plugin/b.cc"]}}
        assert cheap_sources(commands) == {"src/a.cc"}

    def test_uncommitted_changes_are_chosen_first(self):
        sources = {f"src/{number}.cc" for number in range(20)}
        files, left_out = choose(["src/19.cc", "README.md"], sorted(sources), sources, "seed")
        assert (files[0], len(set(files)), left_out) == ("src/19.cc", FILES, 20 - FILES)
        assert choose([], sorted(sources), sources, "seed") != choose([], sorted(sources), sources, "another")

    def test_checker_reports_planted_findings(self, folder):
        if not shutil.which(clang_tidy.PROGRAM):
            pytest.skip("no clang-tidy-14 (bench/setup test-packages)")
        path = os.path.join(folder, "planted.cc")
        with open(path, "w", encoding="utf-8") as file:
            file.write("int BadName(int* value) { return value == 0 ? 1 : 2; }\n")
        with open(os.path.join(folder, "compile_commands.json"), "w", encoding="utf-8") as file:
            json.dump([{"directory": folder, "file": path, "command": f"c++ -std=c++20 -c {path}"}], file)
        found = clang_tidy.findings([os.path.relpath(path, support.REPOSITORY)], folder)
        assert "readability-identifier-naming" in found
        assert "modernize-use-nullptr" in found
