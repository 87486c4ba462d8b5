"""Runs the unittest cases of a script and reports them as GoogleTest does: exit status, and a JUnit file where GTEST_OUTPUT says."""
import os
import subprocess
import sys
import time
import unittest
import xml.etree.ElementTree as xml

REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.environ.get("SHOAL_BUILD_DIR", os.path.join(REPOSITORY, "build/release"))


class _Result(unittest.TextTestResult):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.suite = xml.Element("testsuite", name=os.path.basename(sys.argv[0]))
        self.case = None
        self.started = 0.0

    def startTest(self, test):
        super().startTest(test)
        self.case = xml.SubElement(self.suite, "testcase", classname=type(test).__name__, name=test.id().rsplit(".", 1)[-1])
        self.started = time.monotonic()

    def stopTest(self, test):
        self.case.set("time", f"{time.monotonic() - self.started:.3f}")
        super().stopTest(test)

    def _fail(self, test, error):
        if self.case is None:  # setUpClass
            self.case = xml.SubElement(self.suite, "testcase", classname="", name=str(test))
        xml.SubElement(self.case, "failure", message=self._exc_info_to_string(error, test))

    def addError(self, test, err):
        super().addError(test, err)
        self._fail(test, err)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._fail(test, err)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._fail(subtest, err)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        if self.case is None:
            self.case = xml.SubElement(self.suite, "testcase", classname="", name=str(test))
        xml.SubElement(self.case, "skipped", message=reason)


def cluster_complaint():
    """Why there is no emulated cluster here, or None."""
    done = subprocess.run([os.path.join(REPOSITORY, "bench/cluster"), "--check"], capture_output=True, text=True, timeout=60, check=False)
    return done.stderr.strip() if done.returncode else None


def main(after=None):
    """Runs the cases of the script; `after(result)` may print more about them."""
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    result = unittest.TextTestRunner(verbosity=2, resultclass=_Result).run(suite)
    if after is not None:
        after(result)
    kind, _, path = os.environ.get("GTEST_OUTPUT", "").partition(":")
    if kind == "xml" and path:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        root = xml.Element("testsuites")
        root.append(result.suite)
        xml.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
    sys.exit(0 if result.wasSuccessful() and result.testsRun > 0 else 1)
