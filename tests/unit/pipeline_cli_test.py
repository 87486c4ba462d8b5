"""shoal partition, print pipeline, explain pipeline, simulate pipeline: the worked example, files, and what they refuse."""
import json
import os
import subprocess

import pytest

SHOAL = os.path.join(os.environ["SHOAL_BUILD_DIR"], "bin/shoal")
FIELDS = ("forward_us", "backward_us", "parameter_bytes", "stash_bytes", "output_bytes")
ROWS = ((1500, 3000, 72000, 64000, 64000), (1400, 2800, 36000, 48000, 48000), (600, 1200, 72000, 32000, 16000),
        (600, 1200, 8000, 64000, 32000), (800, 1600, 24000, 16000, 8000), (1300, 2600, 24000, 3000, 1000))
LINK = ("--link-latency-us", "100", "--link-bytes-per-us", "50")


def shoal(*arguments):
    return subprocess.run([SHOAL, *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(name="profile")
def profile_file(tmp_path):
    path = tmp_path / "profile.json"
    units = [{"name": f"unit{i}", **dict(zip(FIELDS, row))} for i, row in enumerate(ROWS)]
    path.write_text(json.dumps({"units": units}), encoding="utf-8")
    return str(path)


def partition(profile, *arguments):
    return shoal("partition", profile, "--partitions", "3", "--microbatches", "4", *arguments)


@pytest.mark.parametrize("arguments, cuts, value", [
    (("--optimize", "speed", "--pipeline", "1f1b"), [1, 4], 7800),
    (("--optimize", "speed", "--pipeline", "1f1b", *LINK), [1, 3], 9600),
    (("--optimize", "speed", "--pipeline", "1f1b", *LINK, "--overlap"), [1, 4], 7800),
    (("--optimize", "memory", "--pipeline", "simple"), [2, 3], 928000),
    (("--optimize", "memory", "--pipeline", "1f1b"), [1, 2], 723000),
    (("--optimize", "speed", "--pipeline", "1f1b", *LINK, "--memory-limit-bytes", "760000"), [1, 2], 12020),
    (("--optimize", "weighted", "--memory-weight", "0.2", "--pipeline", "1f1b", *LINK), [1, 3], 0.54954),
    (("--optimize", "weighted", "--memory-weight", "0.8", "--pipeline", "1f1b", *LINK), [1, 2], 0.62318),
])
def test_worked_example(profile, arguments, cuts, value):
    done = partition(profile, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["cuts"] == cuts
    assert found["cut_units"] == [f"unit{cut}" for cut in cuts]
    assert found["value"] == pytest.approx(value, rel=1e-5)
    assert len(found["stage_us"]) == len(found["stage_bytes"]) == 3


def test_table_and_file(profile, tmp_path):
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in files:
        done = partition(profile, "--optimize", "speed", "--pipeline", "1f1b", *LINK, "-o", str(path))
        assert done.returncode == 0, done.stderr
        assert "unit3" in done.stdout and "9600.0" in done.stdout and "step" in done.stdout
    assert files[0].read_bytes() == files[1].read_bytes()
    assert json.loads(files[0].read_text(encoding="utf-8"))["cuts"] == ["unit1", "unit3"]


def test_recomputation_where_limit_needs_it(profile, tmp_path):
    path = tmp_path / "cuts.json"
    limit = ("--recompute", "where_needed", "--memory-limit-bytes", "900000", "--cuts", "unit2,unit3")
    done = partition(profile, "--pipeline", "simple", *limit, "--json", "-o", str(path))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["stage_recomputes"] == [True, False, False]
    assert found["stage_bytes"] == [592000, 672000, 636000]
    assert [stage["recomputes"] for stage in json.loads(path.read_text(encoding="utf-8"))["stages"]] == [True, False, False]


def test_recomputed_units_are_priced_and_shown(profile, tmp_path):
    path = tmp_path / "cuts.json"
    units = ("--pipeline", "simple", "--cuts", "unit2,unit3", "--recompute-units", "unit0,3..4")
    found = json.loads(partition(profile, *units, "--json", "-o", str(path)).stdout)
    assert found["stage_recomputed_units"] == [["unit0"], [], ["unit3..unit4"]]
    assert found["stage_bytes"] == [928000, 672000, 417000]
    assert found["stage_compute_us"] == [8700 + 1500, 1800, 8100 + 1400]
    assert json.loads(path.read_text(encoding="utf-8"))["recompute_units"] == ["unit0", "unit3..unit4"]
    line = "units that recompute: stage 0: unit0; stage 2: unit3..unit4\n"
    assert line in partition(profile, *units).stdout
    for tool in ("print", "explain"):
        assert line in shoal(tool, "pipeline", "--partitions", "3", "--microbatches", "4", "--profile", profile, *units).stdout
    needed = partition(profile, "--pipeline", "simple", "--cuts", "unit2,unit3", "--recompute-units", "where_needed", "--memory-limit-bytes",
                       "910000", "--json")
    assert json.loads(needed.stdout)["stage_recomputed_units"] == [["unit0", "unit1"], [], []]


def test_units_need_a_profile():
    done = shoal("explain", "pipeline", "--partitions", "2", "--microbatches", "2", "--recompute-units", "all")
    assert done.returncode == 1 and "--recompute-units" in done.stderr and "--profile" in done.stderr


def test_manual_partitions(profile):
    for arguments in (("--cuts", "unit1,unit2"), ("--cuts", "1,2"), ("--assign", "unit0=0,unit1=1", "--default-partition", "2")):
        done = partition(profile, "--optimize", "speed", "--pipeline", "1f1b", *LINK, *arguments, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["value"] == 12020


@pytest.mark.parametrize("arguments, facts", [
    (("--memory-limit-bytes", "722999", "--optimize", "speed", "--pipeline", "1f1b"), ("722999", "723000", "unit2", "unit5")),
    (("--partitions", "7"), ("7", "6")),
    (("--partitions", "0"), ("0",)),
    (("--microbatches", "0"), ("0",)),
    (("--pipeline", "gpipe"), ("gpipe", "1f1b", "interleaved")),
    (("--optimize", "size"), ("size", "speed")),
    (("--optimize", "weighted"), ("--memory-weight",)),
    (("--memory-weight", "2"), ("2",)),
    (("--active-microbatches", "0"), ("active_microbatches", "0")),
    (("--active-microbatches", "2", "--pipeline", "simple"), ("active_microbatches", "simple", "interleaved")),
    (("--link-bytes-per-us", "0"), ("rate", "0")),
    (("--recompute", "some"), ("--recompute", "some", "where_needed")),
    (("--recompute", "where_needed"), ("where_needed", "limit")),
    (("--recompute-units", "unit1,unit9"), ("recompute_units", "unit9", "nearest")),
    (("--recompute-units", "unit4..6"), ("recompute_units", "unit 6", "0 to 5")),
    (("--recompute-units", "unit1,,unit2"), ("--recompute-units", "unit1,,unit2", "list of units")),
    (("--recompute-units", "all", "--recompute", "all"), ("recompute is all", "recompute_units is all", "one of both")),
    (("--recompute-units", "where_needed"), ("units", "where_needed", "limit")),
    (("--recompute-units", "where_needed", "--memory-limit-bytes", "1"), ("limit of 1 bytes", "whichever first units", "smallest possible")),
    (("--cuts", "unit4,unit1"), ("unit4", "unit1")),
    (("--cuts", "unit1,unit9"), ("unit9",)),
    (("--cuts", "unit1.conv,unit2"), ("unit1.conv", "inside")),
    (("--assign", "unit0"), ("unit0",)),
    (("--assign", "unit2=0,unit1=1", "--default-partition", "2"), ("unit0", "stage 0")),
])
def test_refusals(profile, arguments, facts):
    chosen = {"--partitions": "3", "--microbatches": "4"}
    chosen.update(zip(arguments[::2], arguments[1::2]))
    done = shoal("partition", profile, *(word for pair in chosen.items() for word in pair))
    assert done.returncode == 1
    assert not done.stdout
    assert done.stderr.count("\n") == 1
    for fact in facts:
        assert fact in done.stderr


def test_broken_profile(tmp_path):
    path = tmp_path / "broken.json"
    path.write_text('{"units": [{"name": "a", "forward_us": NaN', encoding="utf-8")
    done = shoal("partition", str(path), "--partitions", "1")
    assert done.returncode == 1
    assert "broken.json" in done.stderr and "forward_us" in done.stderr
    done = shoal("partition", str(tmp_path / "none.json"), "--partitions", "1")
    assert done.returncode == 1 and "none.json" in done.stderr


def test_print_pipeline():
    done = shoal("print", "pipeline", "--pipeline", "1f1b", "--partitions", "2", "--microbatches", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "r0: F0 F1 B0 B1\nr1: F0 B0 F1 B1\n"
    done = shoal("print", "pipeline", "--pipeline", "1f1b", "--partitions", "2", "--microbatches", "1", "--messages")
    assert done.stdout == "r0: F0 >F0 <B0 B0\nr1: <F0 F0 B0 >B0\n"


def test_simulate_pipeline(profile, tmp_path):
    eight = ("--partitions", "4", "--microbatches", "8")
    done = shoal("simulate", "pipeline", "--pipeline", "1f1b", *eight, "--message-us", "0.25", "--json")
    assert json.loads(done.stdout)["step_us"] == 37
    done = shoal("simulate", "pipeline", "--pipeline", "interleaved", *eight, "--forward-us", "1,3,1,1", "--backward-us", "2,6,2,2")
    assert "step 78 us" in done.stdout
    picture = tmp_path / "line.svg"
    done = shoal("simulate", "pipeline", "--pipeline", "zb_h1", *eight, "--format", "svg", "-o", str(picture))
    assert done.returncode == 0 and "</svg>" in picture.read_text(encoding="utf-8")
    done = shoal("simulate", "pipeline", "--partitions", "3", "--microbatches", "4", "--profile", profile, *LINK, "--simgrid")
    if "built without SimGrid" in done.stderr:
        pytest.skip("this build has no SimGrid")
    assert done.returncode == 0, done.stderr
    assert "SimGrid" in done.stdout


def test_explain_pipeline():
    done = shoal("explain", "pipeline", "--pipeline", "virtual", "--chunks", "2", "--partitions", "4", "--microbatches", "8",
                 "--forward-us", "0.5", "--backward-us", "1")
    assert done.returncode == 0, done.stderr
    for fact in ("r3: 3F0", "28.5", "15.8 %", "-> virtual", "proven"):
        assert fact in done.stdout
    done = shoal("explain", "pipeline", "--pipeline", "virtual", "--chunks", "2", "--partitions", "4", "--microbatches", "6")
    assert done.returncode == 1
    assert "6" in done.stderr and "4 or 8" in done.stderr
