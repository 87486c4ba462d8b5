"""Networks that are not at their best, or not the usual ones, between emulated hosts: every sum of a job over them is right."""
import os
import re
import shutil
import subprocess
import unittest

import cases

CLUSTER = os.path.join(cases.REPOSITORY, "bench/cluster")
SUMS = os.path.join(cases.BUILD, "bin/checked_sums")
PATH = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"

# Every socket of the host, again and again while the job runs: 'tcp ADDRESS:PORT STATE', as /proc writes them. A host has a network
# namespace of its own, in which nobody else has any.
WATCHED = """
look() { for family in tcp tcp6; do awk -v f=$family 'FNR > 1 {print f, $2, $4}' /proc/net/$family; done; }
(while sleep 0.02; do look; done) > /dev/shm/sockets & watcher=$!
"$@"; status=$?
kill $watcher; wait $watcher 2>/dev/null; sort -u /dev/shm/sockets; exit $status
"""
DOWN_S = 11  # longer than the least that SHOAL_LOST_AFTER may be, shorter than its default
# Most of a shorter patience. What the kernel sends again comes after 0.2, 0.6, 1.4, 3, 6.2 and 12.6 s, or somewhat later.
SHORT_LOST_AFTER_S = 12
SHORT_DOWN_S = 8.5
LISTENS = "0A"


def loss_complaint():
    """Why packets cannot be lost at random here, or None."""
    if not shutil.which("iptables", path=PATH):
        return "there is no iptables (bench/setup test-packages)"
    probe = subprocess.run([CLUSTER, "1x1", "--", "iptables", "-A", "INPUT", "-m", "statistic", "--mode", "random", "--probability", "0.01",
                            "-j", "DROP"], capture_output=True, text=True, timeout=60, check=False, env=os.environ | {"PATH": PATH})
    return None if probe.returncode == 0 else f"iptables cannot lose packets at random here: {probe.stderr.strip()}"


def ipv6_complaint():
    return None if os.path.exists("/proc/net/if_inet6") else "this kernel has no IPv6"


def address_of(text):
    """'tcp 0100480A:7351 0A' -> '10.72.0.1'; of IPv6 the words as they are."""
    family, place, _ = text.split()
    digits = place.split(":")[0]
    return ".".join(str(byte) for byte in reversed(bytes.fromhex(digits))) if family == "tcp" else digits


@unittest.skipIf(cases.cluster_complaint(), cases.cluster_complaint())
class Network(unittest.TestCase):
    def run_sums(self, shape, seconds, *options, script='exec "$@"', environment=None):
        """(sums, over what, seconds of the slowest, all output) of a job whose ranks run `script` with the program as arguments."""
        done = subprocess.run([CLUSTER, shape, *options, "--timeout", "60", "--", "sh", "-c", script, "sh", SUMS, str(seconds)],
                              capture_output=True, text=True, timeout=90, stdin=subprocess.DEVNULL, check=False,
                              env=os.environ | {"PATH": PATH} | (environment or {}))
        output = done.stdout + done.stderr
        self.assertEqual(done.returncode, 0, output[-4000:])
        said = re.search(r"(\d+) sums over (\S+), the slowest ([0-9.]+) s", done.stdout)
        self.assertTrue(said, output[-4000:])
        print(said[0], flush=True)
        return int(said[1]), said[2], float(said[3]), output

    def test_a_link_that_goes_down_for_a_while_loses_and_doubles_nothing(self):
        _, over, slowest, output = self.run_sums("3x1", 6, "--rate", "200mbit", "--cut", f"0@3+{DOWN_S}")
        self.assertEqual(over, "tcp")
        self.assertIn("cutting rail 0 of node0", output)
        self.assertIn("rail 0 of node0 is back", output)
        self.assertGreater(slowest, DOWN_S - 0.5, "the link went down beside the calls")
        self.assertLess(slowest, 2 * DOWN_S + 4, f"the link was back after {DOWN_S} s")

    def test_a_link_that_was_down_for_most_of_the_patience_is_back_at_once(self):
        _, _, slowest, output = self.run_sums("2x1", 4, "--rate", "200mbit", "--cut", f"0@2+{SHORT_DOWN_S}",
                                              environment={"SHOAL_LOST_AFTER": str(SHORT_LOST_AFTER_S)})
        self.assertIn("rail 0 of node0 is back", output)
        self.assertGreater(slowest, SHORT_DOWN_S - 0.5, "the link went down beside the calls")
        self.assertLess(slowest, SHORT_DOWN_S + 4, f"the link was back after {SHORT_DOWN_S} s")

    @unittest.skipIf(loss_complaint(), loss_complaint())
    def test_one_packet_in_a_hundred_is_lost(self):
        script = ("iptables -A INPUT -i eth0 -m statistic --mode random --probability 0.01 -j DROP && "
                  "\"$@\"; status=$?; echo lost $(iptables -L INPUT -v -x -n | awk '/DROP/ {print $1}'); exit $status")
        sums, over, _, output = self.run_sums("3x1", 8, "--rate", "200mbit", script=script)
        self.assertEqual(over, "tcp")
        self.assertGreater(sums, 8)
        lost = [int(count) for count in re.findall(r"lost (\d+)", output)]
        print(f"packets lost: {lost}", flush=True)
        self.assertEqual(len(lost), 3)
        self.assertGreater(min(lost), 10, "nothing was lost, so nothing was shown")

    @unittest.skipIf(ipv6_complaint(), ipv6_complaint())
    def test_a_job_over_ipv6_alone(self):
        script = ("ip -4 addr flush dev eth0 && ip -6 addr add fd00:77::$((SHOAL_RANK + 1))/64 dev eth0 nodad && "
                  "export SHOAL_HOST_ADDRESS=fd00:77::$((SHOAL_RANK + 1)) SHOAL_MASTER_ADDR=fd00:77::1 &&" + WATCHED)
        sums, over, _, output = self.run_sums("3x1", 2, "--rate", "none", script=script)
        self.assertEqual(over, "tcp")
        self.assertGreater(sums, 20)
        sockets = [line for line in output.splitlines() if line.startswith("tcp")]
        self.assertTrue(any(line.startswith("tcp6") and line.endswith(" 01") for line in sockets), "no connection was seen")
        self.assertEqual([line for line in sockets if line.startswith("tcp ")], [], "somebody used IPv4")

    def test_listeners_take_the_chosen_interface_only(self):
        # Hosts of two networks; the job is told by the name of one of them. The store listens only until all have come: the second comes late.
        script = ("unset SHOAL_HOST_ADDRESS SHOAL_RAILS; [ $SHOAL_RANK = 0 ] || sleep 1; "
                  "export SHOAL_SOCKET_IFNAME=eth1 SHOAL_MASTER_ADDR=10.78.0.1 &&" + WATCHED)
        _, over, _, output = self.run_sums("2x1", 2, "--rails", "2", "--rate", "none", script=script)
        self.assertEqual(over, "tcp")
        listening = [line for line in output.splitlines() if line.startswith("tcp") and line.endswith(" " + LISTENS)]
        self.assertEqual({address_of(line) for line in listening}, {"10.78.0.1", "10.78.0.2"}, listening)
        self.assertTrue(any(line.split()[1].endswith(":731E") for line in listening), "the store was not seen")  # 29470


if __name__ == "__main__":
    cases.main()
