"""Loads the distributed tests of PyTorch's wheel and changes the conditions that name backends, so that they include this backend.

The installed file is read, changed in memory and executed. Each change must find the text that it replaces: a new version of PyTorch is an
error instead of fewer tests.
"""
import importlib.util
import logging
import os
import sys
import tempfile
import types
import unittest
from datetime import timedelta

SOURCE = "torch.testing._internal.distributed.distributed_test"
BACKEND = os.environ.setdefault("BACKEND", "shoal")  # gloo: PyTorch's own backend, to compare
WORLD_SIZE = int(os.environ.setdefault("WORLD_SIZE", "3"))
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # with fewer GPUs than ranks every test would be skipped
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Conditions that select complete CPU backends, and their replacements.
GATES = (
    ('BACKEND == "mpi" or BACKEND == "gloo"', f'BACKEND in ("mpi", "gloo", "{BACKEND}")'),
    ('BACKEND != "gloo"', f'BACKEND not in ("gloo", "{BACKEND}")'),
    ('BACKEND != "mpi"', f'BACKEND not in ("mpi", "{BACKEND}")'),
    ('require_backend_is_available({"gloo"})', f'require_backend_is_available({{"gloo", "{BACKEND}"}})'),
)
# The module's own lists of backends whose calls show in profiles.
PROFILED = ("PROFILING_SUPPORTED_BACKENDS", "SEND_RECV_PROFILING_SUPPORTED_BACKENDS")


def _monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """torch.distributed.monitored_barrier without its check that the name of the backend is gloo."""
    import shoal

    if timeout is not None and not isinstance(timeout, timedelta):
        timeout = timedelta(seconds=timeout)
    return shoal.monitored_barrier(group, timeout, wait_all_ranks)


def _skip_what_needs_devices(common):
    """Decorators that skip in this process, before the ranks start."""
    common.skip_if_no_gpu = unittest.skip("CUDA is not available")
    common.skip_if_lt_x_gpu = lambda count, **_: unittest.skip(f"needs {count} CUDA devices")


def load():
    """The module, with DistributedTest._DistTestBase and TestDistBackend in it. Called once, before any rank is forked."""
    import torch

    torch.set_num_threads(1)  # its threads do not survive the forks that make the ranks
    import torch.distributed as dist
    from torch.testing._internal import common_distributed as common

    if BACKEND == "shoal":
        import shoal  # noqa: F401  (registers the backend)

        for feature in ("plugin", "ddp", "subgroup", "gpu", "cuda"):  # the last two allow GPUs
            common.DistTestCases.backend_feature[feature].add(BACKEND)
        dist.monitored_barrier = _monitored_barrier
    _skip_what_needs_devices(common)

    spec = importlib.util.find_spec(SOURCE)
    with open(spec.origin, encoding="utf-8") as file:
        text = file.read()
    if BACKEND != "gloo":
        for gate, lifted in GATES:
            if gate not in text:
                raise AssertionError(f"{spec.origin} has no {gate!r} any more; change GATES to its conditions on backends")
            text = text.replace(gate, lifted)

    os.environ["TEMP_DIR"] = tempfile.mkdtemp(prefix="shoal-pytorch-")
    module = types.ModuleType(SOURCE)
    module.__file__ = spec.origin
    sys.modules[SOURCE] = module  # where pickle looks for its classes
    exec(compile(text, spec.origin, "exec"), module.__dict__)  # noqa: S102
    logging.getLogger(common.__name__).setLevel(logging.ERROR)  # it logs every process that it starts
    for name in PROFILED:
        backends = getattr(module, name)
        if BACKEND not in backends:
            backends.append(BACKEND)
    return module
