"""PyTorch's own tests of a torch.distributed backend, as its wheel carries them, on this one.

    pytorch_test.py [name...]      WORLD_SIZE=3 (or 4), BACKEND=shoal (or gloo, to compare)

Every rank is forked from this process, which has torch loaded already. Fails where a test fails that KNOWN does not explain.
"""
import collections
import multiprocessing
import sys

import cases
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
    setattr(PyTorch, _name, cases.unittest.skip(_reason)(getattr(PyTorch, _name)))


def load_tests(loader, tests, pattern):
    words = sys.argv[1:] or [""]
    names = loader.getTestCaseNames(PyTorch)
    return cases.unittest.TestSuite(PyTorch(name) for name in names if any(word in name for word in words))


def summary(result):
    reasons = collections.Counter(reason for _, reason in result.skipped)
    for reason, count in sorted(reasons.items(), key=lambda item: -item[1]):
        print(f"skipped {count:4}: {reason}")
    failed = len(result.failures) + len(result.errors)
    print(f"{pytorch_suite.BACKEND}, {pytorch_suite.WORLD_SIZE} ranks: {result.testsRun - len(result.skipped)} run, "
          f"{result.testsRun - len(result.skipped) - failed} passed, {failed} failed, {len(result.skipped)} skipped")


if __name__ == "__main__":
    cases.main(summary)
