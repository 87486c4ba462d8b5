"""Two networks between emulated hosts: equal ones, one of half the rate, and one cut while all_reduce runs; and checksums over rails."""
import ctypes.util
import json
import os
import re
import subprocess
import tempfile
import unittest.mock

import pytest

import support
import tries

CLUSTER = os.path.join(support.REPOSITORY, "bench/cluster")
PERF = os.path.join(support.BUILD, "bin/shoal_perf")
PAYLOAD = 1448 / 1514  # share of payload in a packet; the token bucket counts whole packets
SHARE = 0.9  # of the rate of both rails
GAIN = 1.8  # speed-up of two equal rails over one
RAILS = ("tcp", "ofi")  # transports that use several networks
LIBRARIES = {"ofi": "fabric", "ucx": "ucp"}
# The line on standard error about a lost rail, without which a rank continues.
REPORTED = {"tcp": r"shoal: tcp: rank \d+ .*\bsocket \d.*", "ofi": r"shoal: ofi: rank \d+ .*\brail {rail}\b.*"}

pytestmark = pytest.mark.usefixtures("emulated_hosts")


def need(transport):
    """Skips the test where the library of the transport is missing."""
    library = LIBRARIES.get(transport)
    if library and not ctypes.util.find_library(library):
        pytest.skip(f"{transport}: there is no lib{library}")


def run_perf(hosts, transport, *options):
    """(results of shoal_perf, standard error). `options`: of bench/cluster, '--', of shoal_perf."""
    at = options.index("--")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "measured.json")
        done = subprocess.run([CLUSTER, f"{hosts}x1", "--rails", "2", "--timeout", "80", *options[:at], "--", PERF, "--transport", transport,
                               "--json", path, "--no-limit", "--out-of-place", *options[at + 1:]],
                              capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL, check=False)
        assert done.returncode == 0, f"{transport}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        with open(path, encoding="utf-8") as file:
            results = json.load(file)["results"]
    for row in results:
        assert row["wrong"] == 0, row
        assert transport in row["transport"]
    return results, done.stderr


def share_of_both(hosts, transport, rates_mbit_s, warm_up=2, rounds=5):
    """{message size: busbw over the rate of both rails}."""
    rates = ",".join(f"{rate}mbit" for rate in rates_mbit_s)
    results, _ = run_perf(hosts, transport, "--rail-rates", rates, "--", "-b", "16M", "-e", "64M", "-f", "4", "-w", str(warm_up),
                          "--rounds", str(rounds), "--size-seconds", "3")
    limit_gbs = sum(rates_mbit_s) / 8000 * PAYLOAD
    shares = {row["bytes"]: row["busbw_gbs"] / limit_gbs for row in results}
    print(f"{transport}, {hosts} hosts: " + ", ".join(f"{size >> 20} MiB {100 * share:.1f} %" for size, share in shares.items()) +
          f" of {rates}", flush=True)
    return shares


@pytest.mark.parametrize("transport, settings", (("ofi", {"SHOAL_OFI_PROVIDER": "tcp;ofi_rxm"}), ("ucx", {})), ids=("ofi", "ucx"))
def test_checksums_work_over_two_rails(transport, settings):
    need(transport)
    with unittest.mock.patch.dict(os.environ, SHOAL_INTEGRITY="on", **settings):
        results, errors = run_perf(3, transport, "--rate", "none", "--", "-b", "8", "-e", "4M", "-f", "8", "-c", "1", "-w", "1", "--rounds", "3")
    assert not re.search("check ?sum", errors), errors
    assert [row["bytes"] for row in results] == [8 << 3 * i for i in range(7)]


# At these rates the links are the limit, also if other processes use the cores.

@pytest.mark.parametrize("transport", RAILS)
@pytest.mark.long
def test_a_second_rail_increases_bandwidth(transport):
    """Compares two rails with the rate of one."""
    need(transport)

    def complaints(gains):
        assert set(gains) == {16 << 20, 64 << 20}
        return {size: f"{transport}, {size >> 20} MiB: {gain:.2f} x one rail" for size, gain in gains.items() if not gain >= GAIN}

    def gains():
        return {size: 2 * share for size, share in share_of_both(2, transport, (200, 200), warm_up=1, rounds=3).items()}

    tries.judge(gains, complaints)


@pytest.mark.parametrize("transport", RAILS)
@pytest.mark.parametrize("hosts, rates_mbit_s", ((2, (400, 200)), (4, (200, 100))), ids=("2-hosts", "4-hosts"))
@pytest.mark.long
def test_a_rail_of_half_the_rate_is_used(transport, hosts, rates_mbit_s):
    need(transport)

    def complaints(shares):
        assert set(shares) == {16 << 20, 64 << 20}
        return {size: f"{transport}, {size >> 20} MiB: {share:.3f} of both rails" for size, share in shares.items() if not share >= SHARE}

    tries.judge(lambda: share_of_both(hosts, transport, rates_mbit_s), complaints)


@pytest.mark.parametrize("hosts, transport, rail, rate_mbit_s", (
    (2, "tcp", 1, 500), pytest.param(2, "tcp", 0, 500, marks=pytest.mark.long), pytest.param(4, "tcp", 0, 200, marks=pytest.mark.long),
    (2, "ofi", 1, 500), pytest.param(2, "ofi", 0, 500, marks=pytest.mark.long), pytest.param(4, "ofi", 1, 200, marks=pytest.mark.long)))
def test_a_job_continues_when_a_rail_is_cut(hosts, transport, rail, rate_mbit_s):
    need(transport)
    # The largest sizes begin, and are checked, after the cut; the last rounds after the time at which a link without rails would have failed.
    results, errors = run_perf(hosts, transport, "--rate", f"{rate_mbit_s}mbit", "--cut", f"{rail}@4", "--", "-b", "1M", "-e", "8M", "-f", "2",
                             "-c", "3", "--size-seconds", "6")
    sent = [int(number) for number in re.search(rf"rail {rail} of node0\b.*? (\d+) and (\d+) bytes", errors).groups()]  # of bench/cluster
    assert min(sent) > 4 << 20, f"before the cut the rails carried {sent} bytes"  # on a busy machine shares differ
    reports = re.findall(REPORTED[transport].format(rail=rail), errors)
    assert reports, errors
    assert [row["bytes"] for row in results] == [1 << 20, 2 << 20, 4 << 20, 8 << 20]
    assert results[-1]["busbw_gbs"] < 0.55 * 2 * rate_mbit_s / 8000 * PAYLOAD, "the cut had no effect"
    print(f"{transport}: " + ", ".join(f"{row['bytes'] >> 20} MiB {row['busbw_gbs'] * 8:.2f} Gbit/s" for row in results), flush=True)
    print("".join(f"  {report}\n" for report in reports), end="", flush=True)
