"""Programs that train over torch.distributed get the same results over shoal as over Gloo. None of them imports shoal.

    tests/long clients       every client
    PYTHONPATH=tests PYTHON -m pytest -c tests/pytest.ini tests/torch/clients/clients_test.py -k lightning       one; PYTHON is the one with torch

Each script prints a line of JSON for each rank; the lines of both backends are compared, number by number.
"""
import json
import math
import os
import re
import signal
import subprocess
import sys

import pytest

import environments
import support

HERE = os.path.dirname(os.path.abspath(__file__))
TIMEOUT_S = 900  # DeepSpeed compiles a module at its first start
TOLERANCE = 1e-5
RESTARTS = int(os.environ.get("SHOAL_TEST_RESTARTS", "3"))
# Name: (client, ranks of torchrun or 0 where the script starts its own, script, arguments)
CASES = {
    "lightning-fit": ("lightning", 2, "lightning_client.py", "fit"),
    "lightning-fabric": ("lightning", 2, "lightning_client.py", "fabric"),
    "lightning-model_parallel": ("lightning", 4, "lightning_client.py", "model_parallel"),
    "accelerate": ("accelerate", 2, "accelerate_client.py"),
    "transformers": ("transformers", 2, "transformers_client.py"),
    "ray": ("ray", 0, "ray_client.py"),
    "torchft": ("torchft", 0, "torchft_client.py"),
    **{f"deepspeed-{stage}": ("deepspeed", 2, "deepspeed_client.py", str(stage)) for stage in range(4)},
    "torchrec": ("torchrec", 2, "torchrec_client.py"),
}


def environment(python):
    loopback = {"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}
    nothing_is_fetched = {"HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    shoal = {"PYTHONPATH": os.path.join(support.BUILD, "python")}  # with the entry point that torch reads
    extensions = {"TORCH_EXTENSIONS_DIR": os.path.join(os.path.dirname(os.path.dirname(python)), "torch-extensions")}
    return os.environ | loopback | nothing_is_fetched | shoal | extensions | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def torchrun(python, ranks):
    return [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]


def run(command, variables, timeout_s=TIMEOUT_S):
    """The output of a command that must succeed. Ends all its processes."""
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, env=variables, text=True, errors="replace", start_new_session=True, **both) as process:
        try:
            output = process.communicate(timeout=timeout_s)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            raise AssertionError(f"no end within {timeout_s} s: {' '.join(command)}\n{process.communicate()[0][-6000:]}") from None
    assert process.returncode == 0, f"exit status {process.returncode}: {' '.join(command)}\n{output[-6000:]}"
    return output


def results(output):
    """{rank: its values} of what the ranks reported."""
    return {int(rank): json.loads(text) for rank, text in re.findall(r"RESULT (\d+) (\{.*\})$", output, re.MULTILINE)}


def differences(ours, theirs, place=""):
    """The places where two results differ by more than rounding."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        return [line for key in ours for line in differences(ours[key], theirs[key], f"{place}.{key}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [line for index, pair in enumerate(zip(ours, theirs)) for line in differences(*pair, f"{place}[{index}]")]
    if isinstance(ours, float) and isinstance(theirs, float) and math.isclose(ours, theirs, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
        return []
    return [] if ours == theirs else [f"{place}: {ours} over shoal, {theirs} over Gloo"]


def python_of(client):
    try:
        return environments.python_of(client)
    except environments.NotInstalled as error:
        if "Connection" in str(error) or "Temporary failure" in str(error):
            pytest.skip(f"{client} cannot be installed: no network")
        raise


@pytest.mark.parametrize("name", CASES)
def test_results_match_gloo(name):
    client, ranks, script, *arguments = CASES[name]
    python = python_of(client)
    launcher = torchrun(python, ranks) if ranks else [python]
    found = {}
    for backend in ("gloo", "shoal"):
        output = run([*launcher, os.path.join(HERE, script), backend, *arguments], environment(python))
        found[backend] = results(output)
        assert sorted(found[backend]), output
        used = [values.pop("backend", backend) for values in found[backend].values()]
        assert set(used) == {backend}
    assert not differences(found["shoal"], found["gloo"])


def test_torchrun_restarts_train(folder):
    """Every start of the ranks trains, also after an exception or SIGKILL in the start before. (Gloo fails in some of them.)"""
    script = [os.path.join(HERE, "restarts.py"), "shoal", folder, str(RESTARTS)]
    output = run([*torchrun(sys.executable, 2), f"--max-restarts={RESTARTS}", *script], environment(sys.executable), 60 + 30 * RESTARTS)
    assert sorted(os.listdir(folder)) == sorted(f"{round_}.{rank}" for round_ in range(RESTARTS + 1) for rank in range(2))
    assert {values["rounds"] for values in results(output).values()} == {RESTARTS}
