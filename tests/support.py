"""Shared by the Python tests: the source tree, the build folder, whether emulated hosts work here, and ports."""
import os
import random
import socket
import subprocess

REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.environ.get("SHOAL_BUILD_DIR", os.path.join(REPOSITORY, "build/release"))


def cluster_complaint():
    """Why bench/cluster cannot emulate hosts here, or None."""
    done = subprocess.run([os.path.join(REPOSITORY, "bench/cluster"), "--check"], capture_output=True, text=True, timeout=240, check=False)
    return done.stderr.strip() if done.returncode else None


def unused_port(address="127.0.0.1"):
    """A TCP port that nobody listens on, below those that the kernel gives to connections. OSError where the system lacks the address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as one:
        one.bind((address, 0))  # an address that the system lacks is refused here
    for port in random.SystemRandom().sample(range(20000, 32768), 100):
        with socket.socket(family) as one:
            if one.connect_ex((address, port)) != 0:
                return port
    raise OSError(f"100 ports of {address} that were tried at random are all in use")
