"""bench/fsdp2.py: FSDP2 on 4 ranks has the same losses over shoal as over Gloo."""
import json
import os
import subprocess
import sys

import support

SHOAL = os.path.join(support.BUILD, "bin/shoal")
SCRIPT = os.path.join(support.REPOSITORY, "bench/fsdp2.py")
SMALL = ("--steps", "6", "--width", "64", "--layers", "2")


def test_losses_match_gloo():
    command = (SHOAL, "run", "-n", "4", "--", sys.executable, SCRIPT, *SMALL)
    environment = os.environ | {"SHOAL_PYTHON": os.path.join(support.BUILD, "python"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    line = next(line for line in done.stdout.splitlines() if '{"machine"' in line)
    result = json.loads(line[line.index("{"):])
    assert result["ranks"] == 4
    assert result["losses_agree"]
    assert result["shoal"]["loss_last"] < result["shoal"]["loss_first"]
    print(line)
