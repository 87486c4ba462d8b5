"""PyTorch's own tests of a torch.distributed backend, from its wheel, run on this backend.

Environment: WORLD_SIZE=3 (or 4), BACKEND=shoal (or gloo, to compare). Every rank is forked from this process, which has loaded torch already.
"""
import multiprocessing
import unittest

import pytorch_suite

suite = pytorch_suite.load()

# Test name: why this backend cannot pass it. They are skipped, with that reason.
KNOWN = {
    "test_ddp_logging_data_cpu": "DDP's log calls every backend that is not PyTorch's own 'custom'",
}


class PyTorch(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
    """Each inherited test runs in WORLD_SIZE processes."""

    def setUp(self):
        super().setUp()
        self._start_processes(multiprocessing.get_context("fork").Process)


for _name, _reason in KNOWN.items() if pytorch_suite.BACKEND == "shoal" else ():
    setattr(PyTorch, _name, unittest.skip(_reason)(getattr(PyTorch, _name)))
