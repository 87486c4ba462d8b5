"""Counts the cases of test runs: tests/summary.py [--failed-build=NAME...] RESULTS...

RESULTS is what CTest wrote, in a folder below a build's. That folder also has one JUnit file for each of its tests that reports cases (others
count as one case). A build that failed counts as a failed case. Prints failures and the reasons of skips, then the line
`N passed, N failed, N skipped`. Exit status 1 where a case failed or none passed.
"""
import os
import sys
import xml.etree.ElementTree as xml


def last_line(text):
    return ((text or "").strip().splitlines() or [""])[-1]


def cases_of(path):
    """[(name, outcome, reason)] of a JUnit file by GoogleTest or pytest. An error of pytest is a failed fixture or import of the file."""
    cases = []
    for case in xml.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}".lstrip(".")
        failure, error, skipped = case.find("failure"), case.find("error"), case.find("skipped")
        if failure is not None:
            cases.append((name, "failed", failure.get("message") or ""))
        elif error is not None:
            cases.append((name, "failed", f"{error.get('message')}: {last_line(error.text)}"))
        elif skipped is not None or case.get("result") == "skipped":  # expected failures of pytest too
            reason = last_line(skipped.get("message")) if skipped is not None else ""
            cases.append((name, "skipped", reason or "no reason given"))
        elif case.get("status") != "notrun":  # disabled or filtered out
            cases.append((name, "passed", ""))
    return cases


def results_of(path):
    """[(name, outcome, reason)] of one run of CTest."""
    folder = os.path.dirname(os.path.abspath(path))
    build = os.path.basename(os.path.dirname(folder))
    results = []
    for test in xml.parse(path).getroot().iter("testcase"):
        name, status = f"{build}: {test.get('name')}", test.get("status")
        detail = os.path.join(folder, test.get("name") + ".xml")
        try:
            cases = cases_of(detail) if os.path.exists(detail) else []
        except xml.ParseError:  # the process ended while it wrote the file
            cases = []
        results += [(f"{name}: {case}", outcome, words) for case, outcome, words in cases]
        if status == "fail":
            if not any(outcome == "failed" for _, outcome, _ in cases):
                failure = test.find("failure")
                words = failure.get("message") if failure is not None else ""
                output = (test.findtext("system-out") or "").strip().splitlines()
                results.append((name, "failed", "\n".join([f"failed as a whole: {words}"] + output[-15:])))
        elif not cases and os.path.exists(detail):
            results.append((name, "failed", "ran no case: its filter selects none"))
        elif not cases:
            skipped = test.find("skipped")
            words = (skipped.get("message") if skipped is not None else None) or "not run"
            intended = words.startswith(("SKIP_", "Disabled"))  # otherwise the program is missing, or a test that this one needs has failed
            results.append((name, "passed" if status == "run" else "skipped" if intended else "failed", words))
    return results


def main():
    results = []
    for argument in sys.argv[1:]:
        option, _, build = argument.partition("=")
        results += [(build, "failed", "does not build")] if option == "--failed-build" else results_of(argument)
    for outcome, title in (("skipped", "Skipped"), ("failed", "FAILED")):
        for name, _, words in (result for result in results if result[1] == outcome):
            print(f"{title} {name}: {words}")
    count = {outcome: sum(1 for result in results if result[1] == outcome) for outcome in ("passed", "failed", "skipped")}
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    sys.exit(1 if count["failed"] or not count["passed"] else 0)


if __name__ == "__main__":
    main()
