"""Open MPI as the reference: the same calls on the same data give the same results (mpi_reference.cc)."""
import os
import re
import shutil
import subprocess

import pytest

import support

PROGRAM = os.path.join(support.BUILD, "bin/mpi_reference")
CALLS = 200
KINDS = {"all_gather", "all_reduce", "all_to_all", "broadcast", "gather", "reduce", "reduce_scatter", "scatter"}
# Several ranks may share a core, also as root and in a container.
MPIRUN = ("mpirun", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1")


def check_agreement(ranks, **environment):
    if not os.path.exists(PROGRAM) or not shutil.which("mpirun"):
        pytest.skip("built without MPI")
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("SHOAL_", "OMPI_", "PMIX_"))}
    command = (*MPIRUN, "-n", str(ranks), PROGRAM, str(1000 + ranks), str(CALLS))
    done = subprocess.run(command, env=alone | environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    compared = dict(re.findall(r"(\w+)=(\d+)", done.stdout))
    assert set(compared) == KINDS, done.stdout
    assert sum(map(int, compared.values())) == CALLS
    print(done.stdout.strip())


@pytest.mark.parametrize("ranks", range(2, 6))
def test_results_match_open_mpi_over_shared_memory(ranks):
    check_agreement(ranks)


@pytest.mark.parametrize("ranks", (2, 4))
def test_results_match_open_mpi_over_tcp(ranks):
    check_agreement(ranks, SHOAL_TRANSPORTS="tcp")
