"""bench/cluster: ranks, link rates, exit codes, and no process or interface is left."""
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys

import pytest

import processes
import support
import tries

CLUSTER = os.path.join(support.REPOSITORY, "bench/cluster")

# A rank with three processes, one of them in another session, which ignore SIGINT and SIGTERM.
STUBBORN = "trap '' INT TERM; (setsid sleep 1000 &); echo up; sleep 1000; sleep 1000"

# Rank 1 sends to rank 0 and back; both print the rate at which data arrived, in bits per second.
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


# Exit status 0 if the address in the first argument can be reached: nothing listens there, so its host refuses the connection.
REACH = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), timeout=1)
except ConnectionRefusedError:
    sys.exit(0)
except OSError:
    sys.exit(1)
"""


PYTHON = shlex.quote(sys.executable)
REACH_FUNCTION = f"reach() {{ {PYTHON} -c {shlex.quote(REACH)} $1; }}; "  # for sh


def cluster(*arguments, timeout=240, **environment):
    return subprocess.run([CLUSTER, *arguments], capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
                          env=os.environ | environment, check=False)


def need_mpirun():
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun (Debian: openmpi-bin)")


class TestUsage:
    @pytest.mark.parametrize("arguments, expected", (
        ("0x2 -- true", "'0x2'"), ("2x0 -- true", "'2x0'"), ("2 -- true", "'2'"), ("9999x1 -- true", "'9999x1'.* 128 "),
        ("2x1 --rate fast -- true", "'fast'"), ("2x1 --rate 0gbit -- true", "'0gbit'"), ("2x1 --rails 9 -- true", "--rails 9.* 8 "),
        ("2x1 --rails 2 --rail-rates 1gbit -- true", "--rail-rates .* 1 .* 2 "), ("2x1 --cut 1@2 -- true", "--cut.* rail 1$"),
        ("2x1 --cut soon -- true", "--cut.* 'soon'"), ("2x1 --cut 0@1+ -- true", r"--cut.* '0@1\+'"), ("2x1", "command .*--$"),
        ("2x1 --timeout -1 -- true", "--timeout.* '-1'")))
    def test_bad_arguments_are_refused(self, arguments, expected):
        done = cluster(*arguments.split())
        assert done.returncode == 2, done.stderr
        assert re.search(expected, done.stderr.splitlines()[-1]), done.stderr

    def test_a_missing_program_is_named(self):
        done = cluster("2x1", "--", "no-such-program")
        assert done.returncode == 127
        assert "no-such-program" in done.stderr

    def test_refused_namespaces_are_an_error(self):
        # A user namespace that allows no further ones, without the capability to make namespaces of other kinds.
        script = ("echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all --inh-caps=-all "
                  "--ambient-caps=-all \"$@\"")
        probe = ["unshare", "-Ur", "sh", "-c", script, "sh"]
        if subprocess.run([*probe, "true"], capture_output=True, check=False).returncode != 0:
            pytest.skip("the right to make namespaces cannot be taken away here")
        done = subprocess.run([*probe, CLUSTER, "2x1", "--", "true"], capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 125, done.stderr
        assert "namespace" in done.stderr


@pytest.mark.usefixtures("emulated_hosts")
class TestCluster:
    @pytest.mark.parametrize("shape, places", (
        ("2x2", [(0, 0, 2, "node0"), (1, 1, 2, "node0"), (2, 0, 2, "node1"), (3, 1, 2, "node1")]),
        ("2+1", [(0, 0, 2, "node0"), (1, 1, 2, "node0"), (2, 0, 1, "node1")]), ("1x1", [(0, 0, 1, "node0")])), ids=("2x2", "2+1", "1x1"))
    def test_ranks_get_their_environment(self, shape, places):
        done = cluster(shape, "--rate", "none", "--", "sh", "-c",
                       "echo $SHOAL_RANK $SHOAL_SIZE $SHOAL_LOCAL_RANK $SHOAL_LOCAL_SIZE $(hostname) $SHOAL_HOST_ADDRESS "
                       "$SHOAL_MASTER_ADDR $SHOAL_JOB_ID $SHOAL_CLUSTER_RATE $(getent hosts $(hostname) | cut -d' ' -f1)")
        assert done.returncode == 0, done.stderr
        lines = sorted(line.split() for line in done.stdout.splitlines())
        assert [(int(l[0]), int(l[2]), int(l[3]), l[4]) for l in lines] == places
        for line in lines:
            assert int(line[1]) == len(places)
            assert line[6] == lines[0][5]  # the host of rank 0
            assert line[7] == lines[0][7]
            assert line[8] == "none"
            assert line[9] == line[5]

    def test_each_rail_is_a_network_that_can_be_cut(self):
        script = (REACH_FUNCTION + "echo $SHOAL_RANK $SHOAL_RAILS; other=$((2 - SHOAL_RANK)); "
                  "reach 10.78.0.$other && echo there; sleep 2; reach 10.78.0.$other || echo gone; reach 10.77.0.$other && echo here; sleep 2")
        done = cluster("2x1", "--rails", "2", "--rail-rates", "1gbit,500mbit", "--cut", "1@1.5", "--", "sh", "-c", script)
        assert done.returncode == 0, done.stderr
        lines = sorted(done.stdout.splitlines())
        assert lines == ["0 10.77.0.1,10.78.0.1", "1 10.77.0.2,10.78.0.2", "gone", "gone", "here", "here", "there", "there"]
        assert done.stderr.count("rail 1 of node0") == 1, done.stderr

    def test_a_cut_link_comes_back(self):
        script = (REACH_FUNCTION + "other=$((2 - SHOAL_RANK)); "
                  "sleep 1; reach 10.77.0.$other || echo gone; sleep 2.5; reach 10.77.0.$other && echo back; sleep 2")
        done = cluster("2x1", "--cut", "0@0.5+2.2", "--", "sh", "-c", script)
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == ["back", "back", "gone", "gone"]
        assert done.stderr.count("rail 0 of node0") == 2, done.stderr  # cut, and back

    def test_hosts_do_not_share_memory_or_interfaces(self):
        done = cluster("2x1", "--rate", "none", "--", "sh", "-c", "touch /dev/shm/of-$(hostname); sleep 0.5; ls /dev/shm")
        assert sorted(done.stdout.split()) == ["of-node0", "of-node1"]
        assert not os.path.exists("/dev/shm/of-node0")

    def test_hosts_have_their_own_cores_if_possible(self):
        all_cores = os.sched_getaffinity(0)
        if len(all_cores) < 2:
            pytest.skip("only one core, which two hosts must share")
        for arguments in ([], ["--mpi"]):
            done = cluster("2x1", *arguments, "--", sys.executable, "-c",
                           "import os; os.write(1, (' '.join(map(str, os.sched_getaffinity(0))) + '\\n').encode())")
            assert done.returncode == 0, done.stderr
            first, second = (set(map(int, line.split())) for line in done.stdout.splitlines())
            assert first and second and not first & second, done.stdout
            assert first | second == all_cores
        done = cluster(f"{len(all_cores) + 1}x1", "--", sys.executable, "-c",
                       "import os; os.write(1, b'%d\\n' % len(os.sched_getaffinity(0)))")
        assert set(done.stdout.split()) == {str(len(all_cores))}

    def test_congestion_control_applies_to_the_hosts_only(self):
        which = ("--", "cat", "/proc/sys/net/ipv4/tcp_congestion_control")
        with open(which[-1], encoding="ascii") as file:
            before = file.read()
        assert cluster("2x1", *which).stdout == "reno\nreno\n"
        wrong = cluster("2x1", "--congestion", "nonsense", *which)
        assert (wrong.returncode, wrong.stdout) == (125, "")
        assert re.search(r"--congestion nonsense: .*\breno\b", wrong.stderr), wrong.stderr
        with open(which[-1], encoding="ascii") as file:
            assert file.read() == before, "the setting of the machine itself must not change"

    @pytest.mark.parametrize("more_hosts, rate, steered", ((0, "1gbit", True), (0, "10gbit", False), (1, "1gbit", False)))
    def test_a_host_with_a_slow_link_receives_on_its_own_cores(self, more_hosts, rate, steered):
        """`more_hosts`: hosts beyond the number of cores, so that hosts share cores."""
        mask = "/proc/sys/net/core/rps_default_mask"
        if not os.path.exists(mask):
            pytest.skip("this kernel is from before 6.3: it has no rps_default_mask")
        hosts = len(os.sched_getaffinity(0)) + more_hosts
        done = cluster(f"{hosts}x1", "--rate", rate, "--", "sh", "-c", f"echo $(cat {mask}) $(taskset -p $$ | sed 's/.*: //')")
        lines = [line.split() for line in done.stdout.splitlines()]
        assert len(lines) == hosts, done.stdout + done.stderr
        for of_links, of_process in lines:
            assert int(of_process, 16) != 0
            assert int(of_links.replace(",", ""), 16) == (int(of_process, 16) if steered else 0)

    @pytest.mark.parametrize("rate, bits", (("40mbit", 40e6), ("200mbit", 200e6)))
    def test_links_are_shaped_in_both_directions(self, rate, bits):
        def measure():
            done = cluster("2x1", "--rate", rate, "--", sys.executable, "-c", TRANSFER, SIZE=str(int(bits / 8)))
            assert done.returncode == 0, done.stderr
            measured = [float(line) for line in done.stdout.split()]
            assert len(measured) == 2
            assert max(measured) < 1.15 * bits  # bytes in flight at the start add some
            return measured
        # Headers take 4 %.
        tries.judge(measure, lambda measured: {way: f"direction {way}: {one:.0f} of {bits:.0f} bit/s"
                                               for way, one in enumerate(measured) if not one > 0.85 * bits})

    def test_unshaped_links_are_fast(self):
        def measure():
            done = cluster("2x1", "--rate", "none", "--", sys.executable, "-c", TRANSFER, SIZE=str(50_000_000))
            assert done.returncode == 0, done.stderr
            return [float(line) for line in done.stdout.split()]
        tries.judge(measure, lambda measured: {way: f"{one:.0f} bit/s" for way, one in enumerate(measured) if not one > 300e6})

    def test_a_host_receives_no_faster_than_its_link(self):
        # Ranks 1 and 2 send to rank 0 at the same time: the end of the link at rank 0 is the limit.
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
        done = cluster("3x1", "--rate", "80mbit", "--", sys.executable, "-c", script)
        assert done.returncode == 0, done.stderr
        assert float(done.stdout) < 1.15 * 80e6

    def test_the_first_failure_ends_all_with_its_status(self):
        done = cluster("2x2", "--grace", "0.2", "--", "sh", "-c", "test $SHOAL_RANK = 2 && exit 7; sleep 1000")
        assert done.returncode == 7
        assert re.search(r"node1 rank 2 .*\b7\b", done.stderr), done.stderr
        done = cluster("2x1", "--grace", "0.2", "--", "sh", "-c", "test $SHOAL_RANK = 1 && kill -KILL $$; sleep 1000")
        assert done.returncode == 137
        assert re.search("node1 rank 1 .*SIGKILL", done.stderr), done.stderr

    def test_keep_going_lets_the_other_ranks_continue(self):
        done = cluster("2x1", "--keep-going", "--grace", "0", "--", "sh", "-c", "test $SHOAL_RANK = 1 && exit 3; sleep 0.3; echo finished")
        assert (done.returncode, done.stdout) == (3, "finished\n")

    def test_timeout_ends_all_ranks_and_names_them(self):
        done = cluster("2x1", "--timeout", "0.3", "--", "sleep", "1000")
        assert done.returncode == 124
        assert "node0 rank 0, node1 rank 1" in done.stderr

    def test_prefix_labels_whole_lines(self):
        done = cluster("2x1", "--prefix", "--", "sh", "-c", "printf 'a\\nb'; echo c >&2")
        assert sorted(done.stdout.splitlines()) == sorted(f"[node{i} rank {i}] {text}" for i in (0, 1) for text in ("a", "bc"))

    @pytest.mark.parametrize("number", (signal.SIGINT, signal.SIGTERM, signal.SIGKILL), ids=lambda number: number.name)
    def test_a_signal_leaves_no_process_or_interface(self, number):
        with open("/proc/net/dev", encoding="ascii") as file:
            interfaces = file.read().count(":")
        marker = f"SHOAL_TEST_MARKER=cluster-{os.getpid()}-{number}"
        name, value = marker.split("=")
        with subprocess.Popen([CLUSTER, "2x2", "--", "sh", "-c", STUBBORN], stdout=subprocess.PIPE, text=True,
                              env=os.environ | {name: value}) as run, processes.ended_after(marker):
            for _ in range(4):
                assert run.stdout.readline() == "up\n"
            # The last process of a rank starts after it has printed "up".
            assert len(processes.once(marker, lambda found: len(found) >= 12)) >= 12
            run.send_signal(number)
            assert run.wait(timeout=240) == (-9 if number == signal.SIGKILL else 128 + number)
            assert processes.once(marker, lambda found: not found) == []  # the kernel removes namespaces with their last process
        with open("/proc/net/dev", encoding="ascii") as file:
            assert file.read().count(":") == interfaces

    def test_a_user_without_privileges_can_run_it(self):
        if os.geteuid() != 0:
            pytest.skip("not run as root: every other case tests this")
        command = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "env", "PATH=/usr/bin:/bin", "HOME=/tmp"]
        if subprocess.run([*command, "unshare", "-Urn", "true"], capture_output=True, check=False).returncode != 0:
            pytest.skip("user namespaces are not permitted here")
        if subprocess.run([*command, "test", "-r", CLUSTER], check=False).returncode != 0:
            pytest.skip("a plain user cannot read this checkout")
        done = subprocess.run([*command, CLUSTER, "2x1", "--", "hostname"], capture_output=True, text=True, timeout=240, check=False, cwd="/")
        assert sorted(done.stdout.split()) == ["node0", "node1"], done.stderr

    def test_mpirun_starts_the_ranks(self):
        need_mpirun()
        done = cluster("2x2", "--mpi", "--rate", "none", "--", "sh", "-c",
                       "echo $OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_SIZE $(hostname) $SHOAL_HOST_ADDRESS $SHOAL_MASTER_ADDR $SHOAL_RANK. $GIVEN",
                       GIVEN="through")
        assert done.returncode == 0, done.stderr
        lines = sorted(line.split() for line in done.stdout.splitlines())
        assert [(line[0], line[1], line[2], line[5], line[6]) for line in lines] == [(str(rank), "4", f"node{rank // 2}", ".", "through")
                                                                                     for rank in range(4)]
        assert len({line[3] for line in lines}) == 2
        assert {line[4] for line in lines} == {lines[0][3]}
        failed = cluster("2x1", "--mpi", "--rate", "none", "--", "sh", "-c", "test $OMPI_COMM_WORLD_RANK = 1 && exit 6; sleep 1000")
        assert failed.returncode == 6, failed.stderr

    @pytest.mark.parametrize("mpi", (False, True))
    def test_all_hosts_share_one_session(self, mpi):
        """With several sessions the kernel would divide the cores among hosts, not among their threads."""
        if mpi:
            need_mpirun()
        script = "import os; os.write(1, b'%d\\n' % os.getsid(0))"  # one write per rank: lines do not mix
        done = cluster("2x1", *(["--mpi"] if mpi else []), "--rate", "none", "--", sys.executable, "-c", script)
        assert done.returncode == 0, done.stderr
        sessions = done.stdout.split()
        assert len(sessions) == 2, done.stdout
        assert len(set(sessions)) == 1, done.stdout
