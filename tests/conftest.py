"""Fixtures of the Python tests."""
import tempfile

import pytest

import support


@pytest.fixture
def folder():
    """A new folder, removed after the test. (pytest's tmp_path keeps the folders of the last three runs.)"""
    with tempfile.TemporaryDirectory(prefix="shoal-test-") as path:
        yield path


@pytest.fixture(scope="session")
def emulated_hosts():
    """Skips the test where bench/cluster cannot emulate hosts."""
    if complaint := support.cluster_complaint():
        pytest.skip(complaint)
