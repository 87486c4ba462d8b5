"""The rules of the tree hold, and the checker of each rule catches what breaks it."""
import glob
import os
import re
import shutil
import subprocess

import pytest

import support
import rules

CODE = (".cc", ".h", ".c", ".cu", ".cuh", ".py", ".cmake", ".txt", ".in", ".map", ".json", ".md")


def tree():
    """Paths of all files that git tracks or would add."""
    done = subprocess.run(["git", "-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard"], cwd=support.REPOSITORY,
                          capture_output=True, text=True, check=False)
    if done.returncode == 0:
        paths = done.stdout.splitlines()
    else:  # an archive without git
        paths = [os.path.relpath(path, support.REPOSITORY) for path in glob.glob(support.REPOSITORY + "/**/*", recursive=True)]
        paths = [path for path in paths if not path.startswith(("build/", "build"))]
    paths = [path for path in paths if os.path.isfile(os.path.join(support.REPOSITORY, path))]
    return [path for path in paths if not path.startswith("shared/")]


def text_of(path):
    with open(os.path.join(support.REPOSITORY, path), encoding="utf-8", errors="replace") as file:
        return file.read()


def is_code(path):
    return path.endswith(CODE) or path in ("bench/demo", "bench/build", "bench/compare", "bench/study", "bench/cluster", "bench/setup", "tests/run",
                                           ".ci/run")


class TestTree:
    def check(self, complaints):
        if complaints:
            more = [f"... and {len(complaints) - 50} more"] if len(complaints) > 50 else []
            pytest.fail("\n" + "\n".join(complaints[:50] + more), pytrace=False)

    def test_includes_follow_layer_order(self):
        self.check([c for path in tree() if path.endswith((".cc", ".h", ".c", ".cu", ".cuh")) for c in rules.include_complaints(path, text_of(path))])

    def test_files_follow_text_rules(self):
        self.check([c for path in tree() if is_code(path) for c in rules.text_complaints(path, text_of(path))])

    def test_tree_follows_layout_rules(self):
        self.check(rules.layout_complaints(tree()))

    def test_readmes_respect_line_limit(self):
        self.check([c for path in tree() if path.endswith("README.md") for c in rules.readme_complaints(path, text_of(path))])

    def test_markdown_respects_column_limit(self):
        self.check([c for path in tree() if path.endswith(".md") for c in rules.markdown_complaints(path, text_of(path))])

    def test_functions_respect_line_limit(self):
        self.check([c for path in tree() if path.startswith(("src/", "transports/")) and path.endswith((".cc", ".h"))
                    for c in rules.function_complaints(path, text_of(path))])

    def test_names_of_cpp_tests(self):
        self.check([c for path in tree() if path.startswith("tests/") and path.endswith((".cc", ".h"))
                    for c in rules.test_name_complaints(path, text_of(path))])

    def test_code_contains_no_retired_names(self):
        self.check([c for path in tree() if (is_code(path) or path == "tests/long") and not path.startswith(("bench/results/", "tests/tidy/"))
                    for c in rules.retired_complaints(path, text_of(path))])

    def test_code_matches_clang_format(self):
        if not shutil.which("clang-format-14"):
            pytest.skip("no clang-format-14")
        paths = [path for path in tree() if path.endswith((".cc", ".h", ".c"))]
        done = subprocess.run(["clang-format-14", "--dry-run", *paths], cwd=support.REPOSITORY, capture_output=True, text=True, check=False)
        self.check(sorted(set(re.findall(r"^(.*?):\d+:\d+: warning", done.stderr, re.MULTILINE))))

    def test_library_exports_only_public_symbols(self):
        library = os.path.join(support.BUILD, "lib/libshoal.so")
        if not os.path.exists(library):
            pytest.skip("libshoal.so is not built")
        shown = subprocess.run(["nm", "-DC", "--defined-only", library], capture_output=True, text=True, check=True).stdout
        names = [line.split(None, 2)[2] for line in shown.splitlines()]
        self.check([name for name in names if re.search(r"shoal::internal::|fmt::|nlohmann|hwy::", name.split("(")[0])])
        declared = set(re.findall(r"\b(shoal_\w+)\(", re.sub(r"//.*|/\*.*?\*/", "", text_of("include/shoal/shoal.h"))))
        assert len(declared) > 10
        self.check(sorted(declared - {name.split("(")[0] for name in names}))


class TestChecker:
    """The checker of each rule reports what breaks the rule, and nothing that only looks like it."""

    @pytest.mark.parametrize("path, line, bad", (
        ("src/schedule/x.cc", '#include "transports/transport.h"', True), ("src/algorithms/x.h", "#include <thread>", True),
        ("src/selector/x.cc", '#include "src/plan/plan.h"', True), ("src/plan/x.cc", '#include "src/runtime/executor.h"', True),
        ("src/plan/x.cc", '#include "src/base/futex.h"', False), ("src/progress/x.cc", '#include "transports/tcp/tcp.h"', True),
        ("src/progress/x.cc", '#include "transports/transport.h"', False), ("src/join/x.cc", '#include "transports/transport.h"', True),
        ("src/engine/x.cc", "#include <vector>", True), ("src/simulate/x.cc", "#include <cuda_runtime.h>", True),
        ("src/topology/x.cc", "#  include <atomic>", True), ("src/topology/x.cc", '#include "src/machine/sysfs.h"', True),
        ("src/schedule/x.cc", '#include "src/topology/topology.h"', False),
        ("src/schedule/x.cc", '// #include "src/plan/plan.h"', False), ("transports/tcp/x.cc", '#include "transports/shm/ring.h"', True),
        ("transports/tcp/x.cc", '#include "src/device/device.h"', True), ("transports/tcp/x.cc", "#include <shoal/communicator.h>", True),
        ("transports/tcp/x.cc", '#include "transports/transport.h"', False),
        ("transports/tcp/x.cc", '#include "src/trust/proof.h"', False), ("transports/tcp/x.cc", '#include "src/settings/settings.h"', True),
        ("transports/tcp/x.cc", "#include <shoal/status.h>", False), ("transports/tcp/x.cc", "#include <shoal/limits.h>", False),
        ("transports/transport.h", '#include "transports/tcp/tcp.h"', True), ("src/device/x.cc", '#include "src/plan/plan.h"', True),
        ("src/device/x.cc", '#include "src/device/device.h"', False), ("bench/perf/x.cc", '#include "src/plan/plan.h"', True),
        ("torch_plugin/x.cc", '#include "transports/transport.h"', True), ("src/c_api/x.cc", '#include "src/base/s.h"', True),
        ("src/c_api/x.cc", '#include "src/pipeline/profile.h"', True),
        ("torch_plugin/ddp/x.cc", '#include "src/pipeline/shape.h"', True), ("torch_plugin/parallel/x.cc", '#include "src/plan/plan.h"', True),
        ("torch_plugin/parallel/runtime/x.cc", '#include "src/pipeline/shape.h"', False),
        ("torch_plugin/x.cc", '#include "bench/train/data/dataset.h"', False), ("bench/perf/x.cc", "#include <shoal/communicator.h>", False),
        ("src/cuda/x.cc", "#include <cuda_runtime.h>", True), ("kernels/x.cu", "#include <cuda_runtime.h>", False),
        ("src/runtime/x.cc", '#include "kernels/fold.h"', True), ("kernels/x.cu", '#include "src/device/device.h"', True),
        ("kernels/x.cu", '#include "src/cuda/cuda_api.h"', False), ("src/cuda/x.cc", '#include "kernels/parameters.h"', False),
        ("include/shoal/x.h", '#include "src/plan/plan.h"', True), ("src/runtime/x.cc", '#include "tests/x.h"', True)))
    def test_include_rule_reports_forbidden_includes(self, path, line, bad):
        assert bool(rules.include_complaints(path, "// x\n" + line + "\n")) == bad

    @pytest.mark.parametrize("text, bad", (
        ("good\n", False), ("x" * 129 + "\n", True), ("x" * 128 + "\n", False), ("no line feed", True), ("see /ro" + "ot/x\n", True),
        ("see src/root/x and $W/wo" + "rk/x\n", False), ("// TO" + "DO: later\n", True), ("/home" + "/me/x\n", True)),
        ids=("good", "129-columns", "128-columns", "no-line-feed", "root-path", "relative-paths", "unfinished", "home-path"))
    def test_text_rule_reports_forbidden_text(self, text, bad):
        assert bool(rules.text_complaints("src/x.cc", text)) == bad

    def test_layout_rule_reports_unknown_folders(self):
        good = ["README.md", ".ci/run", "src/README.md", "src/runtime/README.md", "src/runtime/x.cc"]
        assert rules.layout_complaints(good) == []
        assert rules.layout_complaints(good + ["docs/x.md", "docs/README.md"])
        assert rules.layout_complaints(good + ["src/other/x.cc"])

    def test_readme_rule_reports_long_pages(self):
        assert rules.readme_complaints("src/README.md", "x\n" * 60) == []
        assert rules.readme_complaints("src/README.md", "x\n" * 61)
        assert rules.readme_complaints("README.md", "x\n" * 200) == []
        assert rules.readme_complaints("README.md", "x\n" * 201)

    def test_markdown_rule_reports_wide_lines(self):
        assert rules.markdown_complaints("src/README.md", "x" * 120 + "\n") == []
        assert rules.markdown_complaints("src/README.md", "x" * 121 + "\n")
        assert rules.markdown_complaints("bench/results/tables.md", "x" * 121 + "\n") == []

    def test_function_rule_reports_long_functions(self):
        of_lines = lambda count: "namespace shoal {\nint f() {\n" + "  g();\n" * (count - 2) + "}\n}  // namespace shoal\n"
        assert rules.function_complaints("src/x.cc", of_lines(80)) == []
        assert rules.function_complaints("src/x.cc", of_lines(81)) == ["src/x.cc:2 is a function of 81 lines, 80 are allowed"]
        assert rules.function_complaints("src/x.h", "class X {\n" + "  int x;\n" * 100 + "};\n") == []

    @pytest.mark.parametrize("name, bad", (
        ("A" * 50, False), ("A" * 51, True), ("WhoLeavesIsNamed", True), ("WhoeverLeavesIsNamed", True), ("WholeMachineUsesReservedCores", False)))
    def test_names_of_tests(self, name, bad):
        for form in ("TEST(Suite, {})", "TEST_F(Suite, {})", "TEST_P(\n    Suite,\n    {})"):
            assert bool(rules.test_name_complaints("tests/x_test.cc", "// x\n" + form.format(name) + " {\n}\n")) == bad

    def test_name_rule_reports_retired_names(self):
        assert rules.retired_complaints("src/x.cc", "ProgressEngine e;\nMesh m;\n") == ["src/x.cc:2 has the retired name Mesh"]
