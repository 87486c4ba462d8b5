"""tests/long: every volume covers files that exist, and stale results are detected in a repository made for the test."""
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import types

import pytest

import support


def load():
    path = os.path.join(support.REPOSITORY, "tests/long")
    loader = importlib.machinery.SourceFileLoader("tests_long", path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("tests_long", loader))
    loader.exec_module(module)
    return module


long = load()
VOLUME = types.SimpleNamespace(covers=("src", ":!src/other"), unit="parts", total=3, run=lambda done, budget_s: (1, f"line {done}"))


class Repository:
    def __init__(self, folder):
        self.folder = folder
        self.git("init", "-q")
        self.first = self.commit("src/x.cc", "1")

    def git(self, *arguments):
        identity = ("-c", "user.name=x", "-c", "user.email=x@localhost")
        return subprocess.run(["git", *identity, *arguments], cwd=self.folder, capture_output=True, text=True, check=True).stdout.strip()

    def write(self, path, text):
        os.makedirs(os.path.dirname(os.path.join(self.folder, path)), exist_ok=True)
        with open(os.path.join(self.folder, path), "w", encoding="ascii") as file:
            file.write(text)

    def commit(self, path, text):
        self.write(path, text)
        self.git("add", path)
        self.git("commit", "-q", "-m", f"{path} {text}")
        return self.git("rev-parse", "--short", "HEAD")


@pytest.fixture
def repository(folder, monkeypatch):
    monkeypatch.setattr(long, "REPOSITORY", folder)
    monkeypatch.setattr(long, "RESULTS", os.path.join(folder, "results.json"))
    monkeypatch.setattr(long, "VOLUMES", {"x": VOLUME})
    return Repository(folder)


class TestVolumes:
    def test_volumes_cover_existing_files(self):
        if not long.git("rev-parse", "HEAD")[1]:
            pytest.skip("no git repository")
        assert not long.uncovered(long.VOLUMES)

    def test_volumes_contain_every_long_test(self):
        listed = subprocess.run(["ctest", "--test-dir", support.BUILD, "--show-only=json-v1", "-L", "^long$"], capture_output=True, text=True,
                                check=True)
        assert {test["name"] for test in json.loads(listed.stdout)["tests"]} <= set(long.ENTRIES)

    def test_result_rows_belong_to_volumes(self):
        rows = long.read_results()
        assert set(rows) <= set(long.VOLUMES)
        assert all(row["unit"] == long.VOLUMES[name].unit and "total" in row for name, row in rows.items())


class TestStale:
    def test_commit_to_covered_file_makes_row_stale(self, repository):
        row = {"done": 1, "first_commit": repository.first, "commit": repository.first}
        assert long.why_stale(VOLUME, {}) == "never ran"
        assert long.why_stale(VOLUME, row) is None
        for path in ("src/README.md", "src/other/x.cc", "tests/x.cc"):
            repository.commit(path, "2")
            assert long.why_stale(VOLUME, row) is None
        newest = repository.commit("src/x.cc", "2")
        assert long.why_stale(VOLUME, row) == f"ran at {repository.first}; later commits to src: 1, the newest is {newest} src/x.cc 2"
        assert long.why_stale(VOLUME, {"done": 1, "first_commit": newest, "commit": newest}) is None

    def test_commit_outside_branch_makes_row_stale(self, repository):
        assert "does not have" in long.why_stale(VOLUME, {"done": 1, "commit": "1234567"})
        branch = repository.git("symbolic-ref", "--short", "HEAD")
        repository.git("checkout", "-q", "-b", "other")
        other = repository.commit("src/x.cc", "3")
        repository.git("checkout", "-q", branch)
        assert "not part of this branch" in long.why_stale(VOLUME, {"done": 1, "commit": other})

    def test_uncommitted_change_of_covered_file_makes_row_stale(self, repository):
        repository.write("tests/x.cc", "2")
        assert long.current_commit(VOLUME.covers) == repository.first
        repository.write("src/x.cc", "2")
        dirty = long.current_commit(VOLUME.covers)
        assert dirty == repository.first + "-dirty"
        assert "uncommitted changes" in long.why_stale(VOLUME, {"done": 1, "first_commit": dirty, "commit": dirty})
        assert long.why_stale(VOLUME, {"done": 1, "commit": dirty}) is None  # in an old row `-dirty` is about any file


class TestRun:
    def results(self):
        with open(long.RESULTS, encoding="utf-8") as file:
            return json.load(file)["volumes"]["x"]

    def test_run_continues_after_last_part(self, repository):
        rows = {}
        assert long.run_part(rows, "x", 1)
        second = repository.commit("tests/x.cc", "2")
        assert long.run_for(60, rows, ["x"])
        row = self.results()
        assert (row["done"], row["parts"], row["last_words"]) == (3, 3, "line 2")
        assert (row["first_commit"], row["commit"]) == (repository.first, second)

    def test_run_restarts_stale_volume(self, repository):
        rows = {}
        assert long.run_part(rows, "x", 1)
        second = repository.commit("src/x.cc", "2")
        assert long.run_for(60, rows, ["x"])
        row = self.results()
        assert (row["done"], row["parts"], row["first_commit"], row["commit"]) == (3, 3, second, second)

    def test_failure_stops_volume_until_removed(self, repository, monkeypatch):
        def fail(done, budget_s):
            raise long.Failed(f"part {done}")

        rows = {}
        assert long.run_part(rows, "x", 1)
        monkeypatch.setattr(long, "VOLUMES", {"x": types.SimpleNamespace(**{**vars(VOLUME), "run": fail})})
        assert not long.run_for(60, rows, ["x"])
        assert (self.results()["done"], self.results()["failure"]) == (1, "part 1")
        repository.commit("src/x.cc", "2")
        assert long.run_for(60, rows, ["x"])  # nothing runs before the failure is removed
        assert self.results()["failure"] == "part 1"
