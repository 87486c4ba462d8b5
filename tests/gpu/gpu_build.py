"""Builds the programs of tests/gpu/run and bench/gpu/run with the tools of the machine, runs their parts one after the other, and writes the
results. The next part also runs after a failure or a hang."""
import json
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def say(text):
    print(f"== {text}", flush=True)


class Parts:
    """Runs commands; prints and keeps their output."""

    def __init__(self):
        self.results = []

    def run(self, name, command, limit_s, environment=None, quiet=False):
        """True if the command succeeded. Exit status 77: skipped."""
        say(f"{name}: {' '.join(command)}")
        started = time.monotonic()
        lines = []
        try:
            # A session of its own, so that its remaining processes can be ended with it.
            process = subprocess.Popen(command, cwd=REPOSITORY, env={**os.environ, **(environment or {})}, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
        except OSError as error:
            self.results.append({"part": name, "outcome": "failed", "seconds": 0, "output": [str(error)]})
            say(f"{name}: {error}")
            return False
        timed_out = False
        previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.alarm(max(int(limit_s), 1))
        try:
            for line in process.stdout:
                lines.append(line.rstrip("\n"))
                if not quiet:
                    print("   " + lines[-1], flush=True)
            process.wait()
        except KeyboardInterrupt:
            timed_out = True
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, previous)
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        outcome = "hung" if timed_out else {0: "passed", 77: "skipped"}.get(process.returncode, "failed")
        if quiet and outcome != "passed":
            print("\n".join("   " + line for line in lines[-40:]), flush=True)
        seconds = time.monotonic() - started
        say(f"{name}: {outcome} after {seconds:.1f} s")
        self.results.append({"part": name, "outcome": outcome, "seconds": round(seconds, 1), "command": command, "output": lines[-400:]})
        return outcome == "passed"

    def note(self, name, outcome, text):
        say(f"{name}: {outcome}: {text}")
        self.results.append({"part": name, "outcome": outcome, "seconds": 0, "output": [text]})


def output_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def machine():
    gpus = output_of("nvidia-smi", "--query-gpu=name,driver_version,memory.total,compute_mode", "--format=csv,noheader").splitlines()
    return {"gpus": gpus, "nvcc": output_of("nvcc", "--version").splitlines()[-1:], "kernel": platform.release(), "cores": os.cpu_count(),
            "commit": output_of("git", "-C", REPOSITORY, "rev-parse", "HEAD")}


def build(parts, folder, prefix="", programs=""):
    """Builds into `folder`: the whole library where its needs are met, else the kernels alone. The folder of the programs.

    `programs`: a folder with programs built elsewhere for this machine's architecture; nothing is built then.
    `prefix`: a folder with what the library needs (headers, static libraries and .pc files below usr/), for machines without Debian
    packages; tests/gpu/README.md says how to fill it."""
    if programs:
        return os.path.abspath(programs)
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not os.path.exists(nvcc):
        parts.note("build", "failed", "there is no nvcc in PATH or /usr/local/cuda/bin")
        return None
    common = ["-G", "Ninja"] if shutil.which("ninja") else []
    common += ["-DCMAKE_BUILD_TYPE=RelWithDebInfo", f"-DCMAKE_CUDA_COMPILER={nvcc}"]
    architecture = output_of("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader").splitlines()[:1]
    if architecture:  # only for the device at hand: a third of the time
        common.append(f"-DCMAKE_CUDA_ARCHITECTURES={architecture[0].replace('.', '')}-real")
    environment = {}
    if prefix:
        prefix = os.path.abspath(prefix)
        common.append(f"-DCMAKE_PREFIX_PATH={prefix}/usr")
        multiarch = platform.machine() + "-linux-gnu"
        environment = {"PKG_CONFIG_SYSROOT_DIR": prefix, "PATH": f"{prefix}/usr/bin:{os.environ['PATH']}",
                       "LD_LIBRARY_PATH": f"{prefix}/usr/lib/{multiarch}:{os.environ.get('LD_LIBRARY_PATH', '')}",
                       "PKG_CONFIG_LIBDIR": f"{prefix}/usr/lib/{multiarch}/pkgconfig:{prefix}/usr/share/pkgconfig"}
    whole = os.path.join(folder, "whole")
    configured = parts.run("configure the library", ["cmake", "-S", REPOSITORY, "-B", whole, *common, "-DSHOAL_TORCH=OFF", "-DSHOAL_CUDA=ON",
                                                     "-DSHOAL_BUILD_TESTS=OFF", "-DSHOAL_BUILD_BENCH=OFF", "-DSHOAL_DEVELOPER=OFF",
                                                     "-DSHOAL_GPU_PROGRAMS=ON"], 120, environment, quiet=True)
    programs = ["gpu_kernels", "gpu_fold_bandwidth", "gpu_nccl"]
    jobs = str(os.cpu_count() or 2)
    if configured and parts.run("build the library", ["cmake", "--build", whole, "-j", jobs, "--target", *programs, "gpu_ranks",
                                                      "gpu_all_reduce"], 600, environment, quiet=True):
        return os.path.join(whole, "bin")
    say("building the kernels without the library")
    alone = os.path.join(folder, "kernels")
    if (parts.run("configure the kernels", ["cmake", "-S", os.path.join(REPOSITORY, "tests/gpu"), "-B", alone, *common], 120, quiet=True)
            and parts.run("build the kernels", ["cmake", "--build", alone, "-j", jobs], 600, quiet=True)):
        return os.path.join(alone, "bin")
    return None


class Mps:
    """Runs NVIDIA's MPS, with which kernels of several processes run at the same time, for the duration of a with block."""

    def __init__(self, parts):
        self.parts = parts
        self.environment = {}

    def __enter__(self):
        control = shutil.which("nvidia-cuda-mps-control")
        if not control:
            self.parts.note("MPS", "skipped", "there is no nvidia-cuda-mps-control")
            return self
        self.folder = tempfile.mkdtemp(prefix="shoal-mps-")
        environment = {"CUDA_MPS_PIPE_DIRECTORY": self.folder + "/pipe", "CUDA_MPS_LOG_DIRECTORY": self.folder + "/log"}
        for path in environment.values():
            os.makedirs(path)
        started = subprocess.run([control, "-d"], env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=30)
        if started.returncode == 0:
            self.environment = environment
        else:
            self.parts.note("MPS", "skipped", f"it does not start: {started.stdout}{started.stderr}")
        return self

    def __exit__(self, *_):
        if self.environment:
            try:
                subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", env={**os.environ, **self.environment}, capture_output=True,
                               text=True, check=False, timeout=30)
            except subprocess.TimeoutExpired:
                self.parts.note("MPS", "failed", "it does not end")


def write(name, parts, folder, tables):
    """`folder`/`name`.json with everything, and .md to read. `tables`: (heading, columns, rows)."""
    os.makedirs(folder, exist_ok=True)
    where = machine()
    with open(os.path.join(folder, name + ".json"), "w", encoding="utf-8") as file:
        json.dump({"machine": where, "parts": parts.results, "tables": [{"what": t[0], "columns": t[1], "rows": t[2]} for t in tables]}, file,
                  indent=1)
        file.write("\n")
    lines = [f"# {name}", "", f"{'; '.join(where['gpus']) or 'no GPU'}; {' '.join(where['nvcc'])}; {where['cores']} cores; kernel "
             f"{where['kernel']}; commit {where['commit'][:12]}", "", "| part | outcome | seconds |", "|---|---|---|"]
    lines += [f"| {part['part']} | {part['outcome']} | {part['seconds']} |" for part in parts.results]
    for heading, columns, rows in tables:
        lines += ["", f"## {heading}", "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        lines += ["| " + " | ".join(str(row.get(column, "")) for column in columns) + " |" for row in rows]
    with open(os.path.join(folder, name + ".md"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    say(f"written: {folder}/{name}.json and .md")
