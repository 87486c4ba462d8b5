"""From a row to a command of shoal_train on bench/cluster, and its result file."""
import json
import os
import shlex
import shutil
import subprocess
import time

from comparison.runs import REPOSITORY, busy_share, shown
from training_study import profile, rates, rows

# Settings beyond shoal's defaults: on slow links lossless compression sends gradients in six sevenths of their bytes.
SETTINGS = ("SHOAL_COMPRESSION=auto",)
TIMEOUT_FACTOR = 4  # a run is ended after this multiple of its expected time
KEPT_TRACES = ("rate-2x1-resnet18", "rate-2x1-vgg16")  # the report draws them; of other traces only the profile is kept


class RowFailed(Exception):
    """A row could not be measured; the message has the reason."""


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def write(path, document):
    """Writes the file atomically, so that an interrupted study leaves complete files only."""
    partial = path + ".partial"
    with open(partial, "w", encoding="utf-8") as file:
        file.write(json.dumps(document, indent=1) + "\n")
    os.replace(partial, path)


def command_of(row, rate, backends, arguments, program, timeout_s):
    command = ["env", *SETTINGS, os.path.join(REPOSITORY, "bench/cluster"), row.shape, "--rate", rate, "--timeout", str(round(timeout_s))]
    if "mpi" in backends:
        command.append("--mpi")
    return [*command, "--", program, "--backend", ",".join(backends), "--model", row.model, "--dataset", row.dataset, "--batch", str(row.batch),
            *row.options, *arguments]


def run(command, on_line):
    """Runs shoal_train and passes its progress to on_line. An exception here ends its processes."""
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True) as process:
        try:
            for line in process.stdout:
                lines.append(line)
                if "  step " in line:  # on a terminal, as mpirun makes one, states overwrite each other
                    on_line(" ".join(line.split("\r")[-1].replace("\x1b[K", "").split()[:7]))
        except BaseException:
            process.terminate()  # bench/cluster ends its ranks
            raise
    if process.returncode != 0:
        raise RowFailed(f"{shlex.join(command)} ended with {process.returncode}:\n{''.join(lines).strip()[-2000:]}")


def available(backends):
    """The backends without mpi if there is no mpirun."""
    return tuple(name for name in backends if name != "mpi" or shutil.which("mpirun"))


class Trainer:
    """Runs shoal_train for one row. `scratch`: a folder for temporary files; `commit`: the version of the program, if known."""

    def __init__(self, row, program, scratch, on_line, commit=None):
        self.row, self.program, self.scratch, self.on_line, self.commit = row, program, scratch, on_line, commit

    def train(self, rate, backends, arguments, expected_s):
        """Returns (the command as users may type it, its results)."""
        json_path = os.path.join(self.scratch, self.row.name + ".json")
        base = command_of(self.row, rate, backends, arguments, self.program, 60 + TIMEOUT_FACTOR * expected_s)
        run([*base, "--json", json_path], self.on_line)
        document = load(json_path)
        os.remove(json_path)
        return shlex.join(shown(word) for word in base), document

    def probe(self, mbit):
        others = [name for name in available(self.row.backends) if name != "shoal"]
        steps = rates.STEPS
        arguments = ("--steps", str(2 + steps), "--block", str(steps))
        _, document = self.train(rates.text_of(mbit), others, arguments, self.row.expected_s())
        return rates.better_probe(mbit, document["results"])

    def measure(self, out):
        """Writes OUT/NAME.json, and OUT/NAME.trace.json for KEPT_TRACES."""
        row = self.row
        busy, started = busy_share(), time.monotonic()
        rate, probes, step_s = row.rate, [], None
        if rate is None:
            best, probes = rates.search(self.probe, row.wire_bits(), row.guessed_compute_s())
            rate, step_s = rates.text_of(best.mbit), best.step_s
        arguments = ["--block", str(row.steps_of_turn(step_s))]
        if "--evaluate" not in row.options:
            arguments += ["--epochs", "1000", "--seconds", str(round(row.training_s(step_s)))]
        trace_path = os.path.join(self.scratch, row.name + ".trace.json")
        if row.trace:
            arguments += ["--trace", trace_path]
        command, document = self.train(rate, available(row.backends), arguments, row.expected_s())
        study = {"part": row.part, "title": rows.PARTS[row.part], "row": row.name, "probes": probes, "busy_share": round(busy, 2),
                 "commit": self.commit}
        if row.trace:
            trace = load(trace_path)
            os.remove(trace_path)
            study["profiles"] = profile.profiles(trace["traceEvents"])
            if row.name in KEPT_TRACES:
                write(os.path.join(out, row.name + ".trace.json"), trace)
        command = command.replace(" --trace " + shlex.quote(shown(trace_path)), "")
        study["seconds"] = round(time.monotonic() - started, 1)
        for result in document["results"]:
            if "--evaluate" not in row.options:
                del result["step_loss"][100:]  # the rest tells nothing more
        write(os.path.join(out, row.name + ".json"), document | {"command": command, "study": study})
