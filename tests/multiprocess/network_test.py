"""Jobs between emulated hosts with failing links, lost packets, IPv6 alone or a chosen interface: every sum is right."""
import os
import re
import shutil
import subprocess

import pytest

import support

CLUSTER = os.path.join(support.REPOSITORY, "bench/cluster")
SUMS = os.path.join(support.BUILD, "bin/checked_sums")
PATH = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"

# Prints every socket of the host while the job runs: 'tcp ADDRESS:PORT STATE', as in /proc. No other process has sockets in the network
# namespace of the host.
WATCHED = """
list() { for family in tcp tcp6; do awk -v f=$family 'FNR > 1 {print f, $2, $4}' /proc/net/$family; done; }
(while sleep 0.02; do list; done) > /dev/shm/sockets & watcher=$!
"$@"; status=$?
kill $watcher; wait $watcher 2>/dev/null; sort -u /dev/shm/sockets; exit $status
"""
DOWN_S = 11  # longer than the minimum of SHOAL_LOST_AFTER, shorter than its default
SHORT_LOST_AFTER_S = 12
SHORT_DOWN_S = 8.5  # between two retransmissions of the kernel: 0.2, 0.6, 1.4, 3, 6.2, 12.6 s after the first packet, or somewhat later
LISTENS = "0A"
STORE_PORT = 29470

pytestmark = pytest.mark.usefixtures("emulated_hosts")


def loss_complaint():
    """Why packets cannot be lost at random here, or None."""
    if not shutil.which("iptables", path=PATH):
        return "there is no iptables (bench/setup test-packages)"
    probe = subprocess.run([CLUSTER, "1x1", "--", "iptables", "-A", "INPUT", "-m", "statistic", "--mode", "random", "--probability", "0.01",
                            "-j", "DROP"], capture_output=True, text=True, timeout=240, check=False, env=os.environ | {"PATH": PATH})
    return None if probe.returncode == 0 else f"iptables cannot lose packets at random here: {probe.stderr.strip()}"


def address_of(text):
    """'tcp 0100480A:7351 0A' -> '10.72.0.1'; an IPv6 address as its digits."""
    family, place, _ = text.split()
    digits = place.split(":")[0]
    return ".".join(str(byte) for byte in reversed(bytes.fromhex(digits))) if family == "tcp" else digits


class TestNetwork:
    def run_sums(self, shape, seconds, *options, script='exec "$@"', environment=None):
        """(sums, transport, seconds of the slowest, all output) of a job whose ranks run `script` with the program as arguments."""
        done = subprocess.run([CLUSTER, shape, *options, "--timeout", "60", "--", "sh", "-c", script, "sh", SUMS, str(seconds)],
                              capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL, check=False,
                              env=os.environ | {"PATH": PATH} | (environment or {}))
        output = done.stdout + done.stderr
        assert done.returncode == 0, output[-4000:]
        report = re.search(r"(\d+) sums over (\S+), .* ([0-9.]+) s", done.stdout)
        assert report, output[-4000:]
        print(report[0], flush=True)
        return int(report[1]), report[2], float(report[3]), output

    def run_through_outage(self, shape, seconds, cut_s, down_s, environment=None):
        """run_sums() with the link of host 0 down from `cut_s` on. On a busy machine the ranks may still start then, or start when the link is
        back, which proves nothing: it is cut later."""
        for later_s in (0, 10, 30):
            try:
                result = self.run_sums(shape, seconds + later_s, "--rate", "200mbit", "--cut", f"0@{cut_s + later_s}+{down_s}",
                                       environment=environment)
            except AssertionError as error:
                if "startup" not in str(error) or later_s == 30:
                    raise
                continue
            if result[2] > down_s - 0.5:
                break
        return result

    def test_a_temporary_link_outage_loses_nothing(self):
        _, over, slowest, output = self.run_through_outage("3x1", 6, 3, DOWN_S)
        assert over == "tcp"
        assert output.count("rail 0 of node0") == 2, output  # cut, and back
        assert slowest > DOWN_S - 0.5, "no call ran while the link was down"
        assert slowest < 2 * DOWN_S + 4, f"the link was back after {DOWN_S} s"

    def test_an_outage_shorter_than_lost_after_is_survived(self):
        _, _, slowest, output = self.run_through_outage("2x1", 4, 2, SHORT_DOWN_S, environment={"SHOAL_LOST_AFTER": str(SHORT_LOST_AFTER_S)})
        assert output.count("rail 0 of node0") == 2, output  # cut, and back
        assert slowest > SHORT_DOWN_S - 0.5, "no call ran while the link was down"
        assert slowest < SHORT_DOWN_S + 4, f"the link was back after {SHORT_DOWN_S} s"

    def test_lost_packets_change_no_result(self):
        if complaint := loss_complaint():
            pytest.skip(complaint)
        script = ("iptables -A INPUT -i eth0 -m statistic --mode random --probability 0.01 -j DROP && "
                  "\"$@\"; status=$?; echo lost $(iptables -L INPUT -v -x -n | awk '/DROP/ {print $1}'); exit $status")
        sums, over, _, output = self.run_sums("3x1", 8, "--rate", "200mbit", script=script)
        assert over == "tcp"
        assert sums > 8
        lost = [int(count) for count in re.findall(r"lost (\d+)", output)]
        print(f"packets lost: {lost}", flush=True)
        assert len(lost) == 3
        assert min(lost) > 10, "too few packets were lost to prove anything"

    def test_a_job_runs_over_ipv6_alone(self):
        if not os.path.exists("/proc/net/if_inet6"):
            pytest.skip("this kernel has no IPv6")
        script = ("ip -4 addr flush dev eth0 && ip -6 addr add fd00:77::$((SHOAL_RANK + 1))/64 dev eth0 nodad && "
                  "export SHOAL_HOST_ADDRESS=fd00:77::$((SHOAL_RANK + 1)) SHOAL_MASTER_ADDR=fd00:77::1 &&" + WATCHED)
        seconds = 2 if os.path.basename(support.BUILD) == "release" else 8  # sanitizers
        sums, over, _, output = self.run_sums("3x1", seconds, "--rate", "none", script=script)
        assert over == "tcp"
        assert sums > 20
        sockets = [line for line in output.splitlines() if line.startswith("tcp")]
        assert any(line.startswith("tcp6") and line.endswith(" 01") for line in sockets), "no connection was seen"
        assert [line for line in sockets if line.startswith("tcp ")] == [], "a socket of IPv4"

    def test_listeners_use_the_chosen_interface_only(self):
        # The hosts have two networks; the job uses one, named by its interface. Rank 1 is late, since the store listens only until all ranks
        # have joined.
        script = ("unset SHOAL_HOST_ADDRESS SHOAL_RAILS; [ $SHOAL_RANK = 0 ] || sleep 1; "
                  "export SHOAL_SOCKET_IFNAME=eth1 SHOAL_MASTER_ADDR=10.78.0.1 &&" + WATCHED)
        _, over, _, output = self.run_sums("2x1", 2, "--rails", "2", "--rate", "none", script=script)
        assert over == "tcp"
        listening = [line for line in output.splitlines() if line.startswith("tcp") and line.endswith(" " + LISTENS)]
        assert {address_of(line) for line in listening} == {"10.78.0.1", "10.78.0.2"}, listening
        assert any(line.split()[1].endswith(f":{STORE_PORT:X}") for line in listening), "the store was not seen"
