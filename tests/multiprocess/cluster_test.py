"""bench/cluster: ranks, link rates, exit codes, and that nothing is left."""
import os
import shlex
import signal
import subprocess
import sys
import time
import unittest

import cases
import processes

CLUSTER = os.path.join(cases.REPOSITORY, "bench/cluster")

# A rank of three processes, one of them out of its session, that do not end when they are asked to.
STUBBORN = "trap '' INT TERM; (setsid sleep 1000 &); echo up; sleep 1000; sleep 1000"

# Rank 1 sends to rank 0 and back; both print the rate of what arrived, in bits per second.
TRANSFER = """
import os, socket, time
size = int(os.environ["SIZE"])
where = (os.environ["SHOAL_MASTER_ADDR"], int(os.environ["SHOAL_MASTER_PORT"]))
def receive(peer):
    buffer, got, start = bytearray(1 << 20), 0, None
    while got < size:
        got += peer.recv_into(buffer)
        if start is None:
            start, first = time.monotonic(), got
    return (size - first) * 8 / (time.monotonic() - start)
if os.environ["SHOAL_RANK"] == "0":
    peer, _ = socket.create_server(where).accept()
    print(receive(peer), flush=True)
    peer.sendall(bytes(size))
else:
    for attempt in range(200):
        try:
            peer = socket.create_connection(where)
            break
        except OSError:
            time.sleep(0.02)
    peer.sendall(bytes(size))
    print(receive(peer), flush=True)
"""


# Exit status 0 where the address in the first argument is reached: nobody listens, but somebody refuses.
REACH = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), timeout=1)
except ConnectionRefusedError:
    sys.exit(0)
except OSError:
    sys.exit(1)
"""


def cluster(*arguments, timeout=60, **environment):
    return subprocess.run([CLUSTER, *arguments], capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
                          env=os.environ | environment, check=False)


class Usage(unittest.TestCase):
    def test_bad_arguments_are_refused_with_a_reason(self):
        for arguments, words in ((["0x2", "--", "true"], "at least one host"), (["2x0", "--", "true"], "at least one host"),
                                 (["2", "--", "true"], "no cluster shape"), (["9999x1", "--", "true"], "too large"),
                                 (["2x1", "--rate", "fast", "--", "true"], "no rate"), (["2x1", "--rate", "0gbit", "--", "true"], "no rate"),
                                 (["2x1", "--rails", "9", "--", "true"], "1 to 8 are possible"),
                                 (["2x1", "--rails", "2", "--rail-rates", "1gbit", "--", "true"], "1 rates for 2 rails"),
                                 (["2x1", "--cut", "1@2", "--", "true"], "no rail 1"), (["2x1", "--cut", "soon", "--", "true"], "is no cut"),
                                 (["2x1", "--cut", "0@1+", "--", "true"], "is no cut"),
                                 (["2x1"], "nothing to run"), (["2x1", "--timeout", "-1", "--", "true"], "no number of seconds")):
            with self.subTest(arguments=arguments):
                done = cluster(*arguments)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(words, done.stderr)

    def test_a_missing_program_and_missing_tools_are_named(self):
        done = cluster("2x1", "--", "no-such-program")
        self.assertEqual(done.returncode, 127)
        self.assertIn("no-such-program", done.stderr)

    def test_refused_namespaces_give_a_clear_message(self):
        # A user namespace in which no further ones may be made, and no capability to make any other kind.
        script = ("echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all --inh-caps=-all "
                  "--ambient-caps=-all \"$@\"")
        probe = ["unshare", "-Ur", "sh", "-c", script, "sh"]
        if subprocess.run([*probe, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("cannot take the right to make namespaces away here")
        done = subprocess.run([*probe, CLUSTER, "2x1", "--", "true"], capture_output=True, text=True, timeout=30, check=False)
        self.assertEqual(done.returncode, 125, done.stderr)
        self.assertIn("does not permit namespaces", done.stderr)


class Cluster(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        done = cluster("--check")
        if done.returncode != 0:
            raise unittest.SkipTest(done.stderr.strip())

    def test_every_rank_finds_its_place(self):
        for shape, places in (("2x2", [(0, 0, 2, "node0"), (1, 1, 2, "node0"), (2, 0, 2, "node1"), (3, 1, 2, "node1")]),
                              ("2+1", [(0, 0, 2, "node0"), (1, 1, 2, "node0"), (2, 0, 1, "node1")]), ("1x1", [(0, 0, 1, "node0")])):
            with self.subTest(shape=shape):
                done = cluster(shape, "--rate", "none", "--", "sh", "-c",
                               "echo $SHOAL_RANK $SHOAL_SIZE $SHOAL_LOCAL_RANK $SHOAL_LOCAL_SIZE $(hostname) $SHOAL_HOST_ADDRESS "
                               "$SHOAL_MASTER_ADDR $SHOAL_JOB_ID $SHOAL_CLUSTER_RATE $(getent hosts $(hostname) | cut -d' ' -f1)")
                self.assertEqual(done.returncode, 0, done.stderr)
                lines = sorted(line.split() for line in done.stdout.splitlines())
                self.assertEqual([(int(l[0]), int(l[2]), int(l[3]), l[4]) for l in lines], places)
                for line in lines:
                    self.assertEqual(int(line[1]), len(places))
                    self.assertEqual(line[6], lines[0][5])  # rank 0's host
                    self.assertEqual(line[7], lines[0][7])
                    self.assertEqual(line[8], "none")
                    self.assertEqual(line[9], line[5])

    def test_each_rail_is_a_network_and_may_be_cut(self):
        script = (f"reach() {{ python3 -c {shlex.quote(REACH)} $1; }}; echo $SHOAL_RANK $SHOAL_RAILS; other=$((2 - SHOAL_RANK)); "
                  "reach 10.78.0.$other && echo there; sleep 2; reach 10.78.0.$other || echo gone; reach 10.77.0.$other && echo here; sleep 2")
        done = cluster("2x1", "--rails", "2", "--rail-rates", "1gbit,500mbit", "--cut", "1@1.5", "--", "sh", "-c", script)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = sorted(done.stdout.splitlines())
        self.assertEqual(lines, ["0 10.77.0.1,10.78.0.1", "1 10.77.0.2,10.78.0.2", "gone", "gone", "here", "here", "there", "there"])
        self.assertIn("cutting rail 1 of node0", done.stderr)

    def test_a_link_may_come_back(self):
        script = (f"reach() {{ python3 -c {shlex.quote(REACH)} $1; }}; other=$((2 - SHOAL_RANK)); "
                  "sleep 1; reach 10.77.0.$other || echo gone; sleep 2.5; reach 10.77.0.$other && echo back; sleep 2")
        done = cluster("2x1", "--cut", "0@0.5+2.2", "--", "sh", "-c", script)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()), ["back", "back", "gone", "gone"])
        self.assertIn("rail 0 of node0 is back", done.stderr)

    def test_hosts_do_not_share_memory_or_interfaces(self):
        done = cluster("2x1", "--rate", "none", "--", "sh", "-c", "touch /dev/shm/of-$(hostname); sleep 0.5; ls /dev/shm")
        self.assertEqual(sorted(done.stdout.split()), ["of-node0", "of-node1"])
        self.assertFalse(os.path.exists("/dev/shm/of-node0"))

    def test_hosts_have_cores_of_their_own_where_there_are_enough(self):
        all_cores = os.sched_getaffinity(0)
        if len(all_cores) < 2:
            self.skipTest("one core: two hosts can only share it")
        for arguments in ([], ["--mpi"]):
            done = cluster("2x1", *arguments, "--", "python3", "-c",
                           "import os; os.write(1, (' '.join(map(str, os.sched_getaffinity(0))) + '\\n').encode())")
            self.assertEqual(done.returncode, 0, done.stderr)
            first, second = (set(map(int, line.split())) for line in done.stdout.splitlines())
            self.assertTrue(first and second and not first & second, done.stdout)
            self.assertEqual(first | second, all_cores)
        done = cluster(f"{len(all_cores) + 1}x1", "--", "python3", "-c",
                       "import os; os.write(1, b'%d\\n' % len(os.sched_getaffinity(0)))")
        self.assertEqual(set(done.stdout.split()), {str(len(all_cores))})

    def test_hosts_choose_their_congestion_control(self):
        which = ("--", "cat", "/proc/sys/net/ipv4/tcp_congestion_control")
        with open(which[-1], encoding="ascii") as file:
            before = file.read()
        self.assertEqual(cluster("2x1", *which).stdout, "reno\nreno\n")
        wrong = cluster("2x1", "--congestion", "nonsense", *which)
        self.assertEqual((wrong.returncode, wrong.stdout), (125, ""))
        self.assertRegex(wrong.stderr, "--congestion nonsense: .*permits a namespace of its own: .*reno")
        with open(which[-1], encoding="ascii") as file:
            self.assertEqual(file.read(), before, "the machine's own")

    def test_a_host_of_a_slow_link_receives_on_its_own_cores(self):
        mask = "/proc/sys/net/core/rps_default_mask"
        if not os.path.exists(mask):
            self.skipTest("this kernel is from before 6.3: it has no rps_default_mask")
        hosts_with_own = len(os.sched_getaffinity(0))
        for shape, rate, steered in ((f"{hosts_with_own}x1", "1gbit", True), (f"{hosts_with_own}x1", "10gbit", False),
                                     (f"{hosts_with_own + 1}x1", "1gbit", False)):
            with self.subTest(shape=shape, rate=rate):
                done = cluster(shape, "--rate", rate, "--", "sh", "-c", f"echo $(cat {mask}) $(taskset -p $$ | sed 's/.*: //')")
                lines = [line.split() for line in done.stdout.splitlines()]
                self.assertEqual(len(lines), int(shape.split("x")[0]), done.stdout + done.stderr)
                for of_links, of_process in lines:
                    self.assertNotEqual(int(of_process, 16), 0)
                    self.assertEqual(int(of_links.replace(",", ""), 16), int(of_process, 16) if steered else 0)

    def test_links_are_shaped_both_ways(self):
        for rate, bits in (("40mbit", 40e6), ("200mbit", 200e6)):
            with self.subTest(rate=rate):
                done = cluster("2x1", "--rate", rate, "--", "python3", "-c", TRANSFER, SIZE=str(int(bits / 8)))
                self.assertEqual(done.returncode, 0, done.stderr)
                measured = [float(line) for line in done.stdout.split()]
                self.assertEqual(len(measured), 2)
                for one in measured:  # headers take 4 %, what is in flight at the start adds some
                    self.assertGreater(one, 0.85 * bits)
                    self.assertLess(one, 1.15 * bits)

    def test_unshaped_links_are_fast(self):
        done = cluster("2x1", "--rate", "none", "--", "python3", "-c", TRANSFER, SIZE=str(50_000_000))
        for line in done.stdout.split():
            self.assertGreater(float(line), 300e6)

    def test_a_host_receives_no_faster_than_its_link(self):
        # Ranks 1 and 2 send to rank 0 at once: its own end of the link is the limit.
        script = """
import os, socket, time
where = (os.environ["SHOAL_MASTER_ADDR"], int(os.environ["SHOAL_MASTER_PORT"]))
size = 5_000_000
if os.environ["SHOAL_RANK"] == "0":
    server = socket.create_server(where)
    peers = [server.accept()[0] for _ in range(2)]
    start, got = time.monotonic(), 0
    import selectors
    selector = selectors.DefaultSelector()
    for peer in peers:
        selector.register(peer, selectors.EVENT_READ)
    while got < 2 * size:
        for key, _ in selector.select():
            got += len(key.fileobj.recv(1 << 20))
    print(got * 8 / (time.monotonic() - start))
else:
    for attempt in range(200):
        try:
            peer = socket.create_connection(where)
            break
        except OSError:
            time.sleep(0.02)
    peer.sendall(bytes(size))
    peer.recv(1)
"""
        done = cluster("3x1", "--rate", "80mbit", "--", "python3", "-c", script)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLess(float(done.stdout), 1.15 * 80e6)

    def test_the_first_failure_gives_the_status_and_ends_the_rest(self):
        done = cluster("2x2", "--grace", "0.2", "--", "sh", "-c", "test $SHOAL_RANK = 2 && exit 7; sleep 1000")
        self.assertEqual(done.returncode, 7)
        self.assertIn("node1 rank 2 exited with status 7", done.stderr)
        done = cluster("2x1", "--grace", "0.2", "--", "sh", "-c", "test $SHOAL_RANK = 1 && kill -KILL $$; sleep 1000")
        self.assertEqual(done.returncode, 137)
        self.assertIn("was killed by SIGKILL", done.stderr)

    def test_others_run_on_where_asked(self):
        done = cluster("2x1", "--keep-going", "--grace", "0", "--", "sh", "-c", "test $SHOAL_RANK = 1 && exit 3; sleep 0.3; echo finished")
        self.assertEqual((done.returncode, done.stdout), (3, "finished\n"))

    def test_timeout(self):
        done = cluster("2x1", "--timeout", "0.3", "--", "sleep", "1000")
        self.assertEqual(done.returncode, 124)
        self.assertIn("node0 rank 0, node1 rank 1", done.stderr)

    def test_prefix_labels_whole_lines(self):
        done = cluster("2x1", "--prefix", "--", "sh", "-c", "printf 'a\\nb'; echo c >&2")
        self.assertEqual(sorted(done.stdout.splitlines()), sorted(f"[node{i} rank {i}] {text}" for i in (0, 1) for text in ("a", "bc")))

    def test_nothing_is_left_however_it_ends(self):
        with open("/proc/net/dev", encoding="ascii") as file:
            interfaces = file.read().count(":")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            with self.subTest(signal=number.name):
                marker = f"SHOAL_TEST_MARKER=cluster-{os.getpid()}-{number}"
                name, value = marker.split("=")
                with subprocess.Popen([CLUSTER, "2x2", "--", "sh", "-c", STUBBORN], stdout=subprocess.PIPE, text=True,
                                      env=os.environ | {name: value}) as run, processes.ended_after(marker):
                    for _ in range(4):
                        self.assertEqual(run.stdout.readline(), "up\n")
                    # The last process of a rank comes after its word.
                    self.assertGreaterEqual(len(processes.once(marker, lambda found: len(found) >= 12)), 12)
                    run.send_signal(number)
                    self.assertEqual(run.wait(timeout=20), -9 if number == signal.SIGKILL else 128 + number)
                    self.assertEqual(processes.once(marker, lambda found: not found), [])  # and with the processes go their namespaces
                with open("/proc/net/dev", encoding="ascii") as file:
                    self.assertEqual(file.read().count(":"), interfaces)

    def test_a_plain_user_can(self):
        if os.geteuid() != 0:
            self.skipTest("this is a plain user: every other case shows it")
        command = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "env", "PATH=/usr/bin:/bin", "HOME=/tmp"]
        if subprocess.run([*command, "unshare", "-Urn", "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("user namespaces are not permitted here")
        if subprocess.run([*command, "test", "-r", CLUSTER], check=False).returncode != 0:
            self.skipTest("a plain user cannot read this checkout")
        done = subprocess.run([*command, CLUSTER, "2x1", "--", "hostname"], capture_output=True, text=True, timeout=30, check=False, cwd="/")
        self.assertEqual(sorted(done.stdout.split()), ["node0", "node1"], done.stderr)

    def test_mpirun_starts_the_ranks(self):
        if subprocess.run(["which", "mpirun"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no mpirun (Debian: openmpi-bin)")
        done = cluster("2x2", "--mpi", "--rate", "none", "--", "sh", "-c",
                       "echo $OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_SIZE $(hostname) $SHOAL_HOST_ADDRESS $SHOAL_MASTER_ADDR $SHOAL_RANK. $GIVEN",
                       GIVEN="through")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = sorted(line.split() for line in done.stdout.splitlines())
        self.assertEqual([(line[0], line[1], line[2], line[5], line[6]) for line in lines],
                         [(str(rank), "4", f"node{rank // 2}", ".", "through") for rank in range(4)])
        self.assertEqual(len({line[3] for line in lines}), 2)
        self.assertEqual({line[4] for line in lines}, {lines[0][3]})
        failed = cluster("2x1", "--mpi", "--rate", "none", "--", "sh", "-c", "test $OMPI_COMM_WORLD_RANK = 1 && exit 6; sleep 1000")
        self.assertEqual(failed.returncode, 6, failed.stderr)

    def test_hosts_share_the_cores_as_threads_of_one_session(self):
        if subprocess.run(["which", "mpirun"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no mpirun (Debian: openmpi-bin)")
        say = "import os; os.write(1, b'%d\\n' % os.getsid(0))"  # in one piece, beside the other's
        for arguments in ([], ["--mpi"]):
            done = cluster("2x1", *arguments, "--rate", "none", "--", sys.executable, "-c", say)
            self.assertEqual(done.returncode, 0, done.stderr)
            sessions = done.stdout.split()
            self.assertEqual(len(sessions), 2, done.stdout)
            self.assertEqual(len(set(sessions)), 1, done.stdout)


cases.main()
