"""Open MPI as the reference: the same calls on the same data give the same results (mpi_reference.cc)."""
import os
import re
import shutil
import subprocess
import unittest

import cases

PROGRAM = os.path.join(cases.BUILD, "bin/mpi_reference")
CALLS = 200
KINDS = {"all_gather", "all_reduce", "all_to_all", "broadcast", "gather", "reduce", "reduce_scatter", "scatter"}
# Several ranks may share a core, also as root and in a container.
MPIRUN = ("mpirun", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1")


class Reference(unittest.TestCase):
    def setUp(self):
        if not os.path.exists(PROGRAM) or not shutil.which("mpirun"):
            self.skipTest("built without MPI")

    def agree(self, ranks, **environment):
        alone = {name: value for name, value in os.environ.items() if not name.startswith(("SHOAL_", "OMPI_", "PMIX_"))}
        command = (*MPIRUN, "-n", str(ranks), PROGRAM, str(1000 + ranks), str(CALLS))
        done = subprocess.run(command, env=alone | environment, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        compared = dict(re.findall(r"(\w+)=(\d+)", done.stdout))
        self.assertEqual(set(compared), KINDS, done.stdout)
        self.assertEqual(sum(map(int, compared.values())), CALLS)
        print(done.stdout.strip())

    def test_shared_memory(self):
        for ranks in range(2, 6):
            with self.subTest(ranks=ranks):
                self.agree(ranks)

    def test_tcp(self):
        for ranks in (2, 4):
            with self.subTest(ranks=ranks):
                self.agree(ranks, SHOAL_TRANSPORTS="tcp")


cases.main()
