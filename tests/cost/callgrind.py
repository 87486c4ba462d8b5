"""Instructions that a program executes below one of its functions, by callgrind; one count for each time that it is entered.

Left out is code that the processor's features choose (the kernels of the device, the C library's memory and string functions): it
differs between machines, and moving and reducing bytes has benchmarks of its own.
"""
import glob
import os
import re
import shutil
import subprocess
import tempfile

CHOSEN_BY_PROCESSOR = re.compile(r"shoal::host::(N_\w+|portable)::|shoal::shm::streaming_copy|_(sse|ssse|avx|evex|erms)\w*$|^_dl_runtime_resolve")
LIMIT_S = 120


def missing():
    """Why nothing can be counted here; "" where it can."""
    if not shutil.which("valgrind"):
        return "no valgrind (bench/setup test-packages installs it)"
    if os.uname().machine != "x86_64":
        return f"the budgets are those of x86_64, this is {os.uname().machine}"
    return ""


def self_costs(text):
    """{function: instructions of its own} of one profile; where that function's name is compressed, its first mention gives it."""
    names, costs, function, is_call = {}, {}, None, False
    for line in text.splitlines():
        match = re.match(r"(c?fn)=(\(\d+\))(?: (.*))?", line)
        if match:
            if match[3]:
                names[match[2]] = match[3]
            if match[1] == "fn":
                function = match[2]
        elif line.startswith("calls="):
            is_call = True  # the next line is the inclusive cost of what was called
        elif line[:1] in "0123456789+-*" and line:
            if not is_call:
                costs[function] = costs.get(function, 0) + int(line.split()[1])
            is_call = False
    return {names[function]: cost for function, cost in costs.items()}


def profiles(command, function):
    """One {function: instructions} for each entry of `function`. RuntimeError where the program fails."""
    with tempfile.TemporaryDirectory(prefix="shoal-cost-") as folder:
        run = subprocess.run(["valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={folder}/profile.%p", "--compress-pos=no",
                              "--collect-atstart=no", f"--toggle-collect={function}", f"--dump-after={function}", *command],
                             capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if run.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {run.returncode}: {run.stderr.strip()[-2000:]}")
        found = []
        for path in glob.glob(folder + "/profile.*.*"):  # that of the program's end has no number
            with open(path, encoding="utf-8") as file:
                found.append(self_costs(file.read()))
        return found


def counted(profile):
    """The instructions of a profile that do not depend on the processor."""
    return sum(cost for name, cost in profile.items() if not CHOSEN_BY_PROCESSOR.search(name))
