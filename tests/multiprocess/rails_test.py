"""Two networks between emulated hosts: equal ones, one of half the rate, and either cut while all_reduce runs; and check sums over rails."""
import ctypes.util
import json
import os
import subprocess
import tempfile
import unittest
import unittest.mock

import cases
import tries

CLUSTER = os.path.join(cases.REPOSITORY, "bench/cluster")
PERF = os.path.join(cases.BUILD, "bin/shoal_perf")
PAYLOAD = 1448 / 1514  # of a packet, which the token bucket counts whole
SHARE = 0.9  # of what both rails can carry
GAIN = 1.8  # of two equal rails over one
SAID = {"tcp": ("has not answered on socket ", "going on without its network"), "ofi": ("is no longer reached by rail {rail}", "going on without it")}


def ofi_complaint():
    """Why there is no transport ofi here, or None."""
    return None if ctypes.util.find_library("fabric") else "ofi: no libfabric here"


def ucx_complaint():
    """Why there is no transport ucx here, or None."""
    return None if ctypes.util.find_library("ucp") else "ucx: no UCX here"


@unittest.skipIf(cases.cluster_complaint(), cases.cluster_complaint())
class Rails(unittest.TestCase):
    def run_perf(self, hosts, transport, *options):
        """What shoal_perf measured, and what was said on standard error. `options`: of the cluster, '--', of shoal_perf."""
        at = options.index("--")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "measured.json")
            done = subprocess.run([CLUSTER, f"{hosts}x1", "--rails", "2", "--timeout", "80", *options[:at], "--", PERF, "--transport", transport,
                                   "--json", path, "--no-limit", "--out-of-place", *options[at + 1:]],
                                  capture_output=True, text=True, timeout=90, stdin=subprocess.DEVNULL, check=False)
            self.assertEqual(done.returncode, 0, f"{transport}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
            with open(path, encoding="utf-8") as file:
                results = json.load(file)["results"]
        for row in results:
            self.assertEqual(row["wrong"], 0, row)
            self.assertIn(transport, row["transport"])
        return results, done.stderr

    def share_of_both(self, hosts, transport, rates_mbit_s, warm_up=2, rounds=5):
        """By message size: busbw over what both rails can carry."""
        rates = ",".join(f"{rate}mbit" for rate in rates_mbit_s)
        results, _ = self.run_perf(hosts, transport, "--rail-rates", rates, "--", "-b", "16M", "-e", "64M", "-f", "4", "-w", str(warm_up),
                                   "--rounds", str(rounds), "--size-seconds", "3")
        limit_gbs = sum(rates_mbit_s) / 8000 * PAYLOAD
        shares = {row["bytes"]: row["busbw_gbs"] / limit_gbs for row in results}
        print(f"{transport}, {hosts} hosts: " + ", ".join(f"{size >> 20} MiB {100 * share:.1f} %" for size, share in shares.items()) +
              f" of {rates}", flush=True)
        return shares

    def check_share(self, hosts, transport, rates_mbit_s):
        def complaints(shares):
            self.assertEqual(set(shares), {16 << 20, 64 << 20})
            return {size: f"{transport}, {size >> 20} MiB: {share:.3f} of both rails" for size, share in shares.items() if not share >= SHARE}

        tries.judge(self, lambda: self.share_of_both(hosts, transport, rates_mbit_s), complaints)

    def check_gain(self, transport, rate_mbit_s):
        """Two rails beside the most that one of them can carry."""
        def complaints(gains):
            self.assertEqual(set(gains), {16 << 20, 64 << 20})
            return {size: f"{transport}, {size >> 20} MiB: {gain:.2f} x one rail" for size, gain in gains.items() if not gain >= GAIN}

        def gains():
            return {size: 2 * share for size, share in self.share_of_both(2, transport, (rate_mbit_s, rate_mbit_s), warm_up=1, rounds=3).items()}

        tries.judge(self, gains, complaints)

    def check_cut(self, hosts, transport, rail, rate_mbit_s):
        # The largest sizes begin, and are checked, when the rail is gone; the last ones when a connection without rails would have been given up.
        results, said = self.run_perf(hosts, transport, "--rate", f"{rate_mbit_s}mbit", "--cut", f"{rail}@4", "--", "-b", "1M", "-e", "8M", "-f", "2",
                                      "-c", "3", "--size-seconds", "6")
        self.assertIn(f"cutting rail {rail} of node0", said)
        for word in SAID[transport]:
            self.assertIn(word.format(rail=rail), said)
        self.assertEqual([row["bytes"] for row in results], [1 << 20, 2 << 20, 4 << 20, 8 << 20])
        both_gbs = 2 * rate_mbit_s / 8000 * PAYLOAD
        # The smallest size begins before the cut; how much of its time that is, the start of the job decides.
        before_gbs = results[0]["busbw_gbs"] * results[0]["latency_us"] / results[0]["latency_us_p10"]
        self.assertGreater(before_gbs, 0.6 * both_gbs, "both rails were used before the cut")
        self.assertLess(results[-1]["busbw_gbs"], 0.55 * both_gbs, "the cut took nothing away")
        print(f"{transport}: " + ", ".join(f"{row['bytes'] >> 20} MiB {row['busbw_gbs'] * 8:.2f} Gbit/s" for row in results), flush=True)
        print("".join(f"  {line}\n" for line in said.splitlines() if "going on" in line), end="", flush=True)

    def check_sums(self, transport, **settings):
        """Right sums where payloads have check sums."""
        with unittest.mock.patch.dict(os.environ, SHOAL_INTEGRITY="on", **settings):
            results, said = self.run_perf(3, transport, "--rate", "none", "--",
                                          "-b", "8", "-e", "4M", "-f", "8", "-c", "1", "-w", "1", "--rounds", "3")
        self.assertNotIn("wrong check sum", said)
        self.assertEqual([row["bytes"] for row in results], [8 << 3 * i for i in range(7)])

    @unittest.skipIf(ofi_complaint(), ofi_complaint())
    def test_check_sums_over_ofi(self):
        self.check_sums("ofi", SHOAL_OFI_PROVIDER="tcp;ofi_rxm")

    @unittest.skipIf(ucx_complaint(), ucx_complaint())
    def test_check_sums_over_ucx(self):
        self.check_sums("ucx")

    # Rates at which the wire limits, not two cores that others may use.

    def test_tcp_gains_by_a_second_rail(self):
        self.check_gain("tcp", 200)

    @unittest.skipIf(ofi_complaint(), ofi_complaint())
    def test_ofi_gains_by_a_second_rail(self):
        self.check_gain("ofi", 200)

    def test_tcp_uses_a_rail_of_half_the_rate(self):
        self.check_share(2, "tcp", (400, 200))

    @unittest.skipIf(ofi_complaint(), ofi_complaint())
    def test_ofi_uses_a_rail_of_half_the_rate(self):
        self.check_share(2, "ofi", (400, 200))

    def test_tcp_uses_a_rail_of_half_the_rate_between_four_hosts(self):
        self.check_share(4, "tcp", (200, 100))

    @unittest.skipIf(ofi_complaint(), ofi_complaint())
    def test_ofi_uses_a_rail_of_half_the_rate_between_four_hosts(self):
        self.check_share(4, "ofi", (200, 100))

    def test_tcp_goes_on_when_a_rail_is_cut(self):
        self.check_cut(2, "tcp", 1, 500)

    @unittest.skipIf(ofi_complaint(), ofi_complaint())
    def test_ofi_goes_on_when_a_rail_is_cut(self):
        self.check_cut(2, "ofi", 1, 500)

    def test_tcp_goes_on_when_the_first_rail_is_cut(self):
        self.check_cut(2, "tcp", 0, 500)

    @unittest.skipIf(ofi_complaint(), ofi_complaint())
    def test_ofi_goes_on_when_the_first_rail_is_cut(self):
        self.check_cut(2, "ofi", 0, 500)

    def test_tcp_goes_on_between_four_hosts(self):
        self.check_cut(4, "tcp", 0, 200)

    @unittest.skipIf(ofi_complaint(), ofi_complaint())
    def test_ofi_goes_on_between_four_hosts(self):
        self.check_cut(4, "ofi", 1, 200)


if __name__ == "__main__":
    cases.main()
