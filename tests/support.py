"""Shared by the Python tests: the source tree, the build folder, and whether emulated hosts work here."""
import os
import subprocess

REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.environ.get("SHOAL_BUILD_DIR", os.path.join(REPOSITORY, "build/release"))


def cluster_complaint():
    """Why bench/cluster cannot emulate hosts here, or None."""
    done = subprocess.run([os.path.join(REPOSITORY, "bench/cluster"), "--check"], capture_output=True, text=True, timeout=240, check=False)
    return done.stderr.strip() if done.returncode else None
