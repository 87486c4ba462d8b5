"""shoal run: the environment of the ranks, exit codes, signals, and no process is left."""
import itertools
import json
import os
import re
import signal
import subprocess
import time

import pytest

import processes
import support

SHOAL = os.path.join(support.BUILD, "bin/shoal")

# A rank of three processes that ignore SIGINT, SIGTERM and SIGHUP.
STUBBORN = "trap '' INT TERM HUP; sleep 1000 & echo up; sleep 1000; sleep 1000"


def run(*arguments, timeout=240, **environment):
    return subprocess.run([SHOAL, "run", *arguments], capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
                          env=os.environ | environment, check=False)


PERF = os.path.join(support.BUILD, "bin/shoal_perf")


def require_perf():
    """Skips the test where this build has no bench/perf."""
    if not os.path.exists(PERF):
        pytest.skip("no shoal_perf in this build")


def start_ranks(ranks, timeout_s=30, users=(), open_files=None, **environment):
    """Starts ranks, (rank, size) each, without a launcher. Returns pid and standard error of each when all have ended."""
    require_perf()
    common = os.environ | {"SHOAL_MASTER_ADDR": "127.0.0.1", "SHOAL_MASTER_PORT": str(support.unused_port())} | environment
    limit = [] if open_files is None else ["prlimit", f"--nofile={open_files}:"]
    jobs = [subprocess.Popen([*limit, PERF, "-e", "8", "-T", str(timeout_s)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                             env=common | {"SHOAL_RANK": str(rank), "SHOAL_SIZE": str(size)}, user=user)
            for (rank, size), user in itertools.zip_longest(ranks, users)]
    try:
        return [(job.pid, job.communicate(timeout=240)[1]) for job in jobs]
    finally:
        for job in jobs:
            job.kill()
            job.wait()


SIGNALS = pytest.mark.parametrize("number", (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL), ids=lambda number: number.name)


def check_nothing_is_left(number, arguments, count):
    """Sends signal `number` to shoal run with `count` ranks that ignore signals: no process may be left."""
    marker = f"SHOAL_TEST_MARKER=run-{os.getpid()}-{number}"
    name, value = marker.split("=")
    with subprocess.Popen([SHOAL, "run", *arguments, "--grace", "0.1", "--", "sh", "-c", STUBBORN], stdout=subprocess.PIPE, text=True,
                          env=os.environ | {name: value}) as job, processes.ended_after(marker):
        for _ in range(count):
            assert job.stdout.readline() == "up\n"
        # The last process of a rank starts after it has printed "up".
        assert len(processes.once(marker, lambda found: len(found) >= 3 * count)) >= 3 * count
        job.send_signal(number)
        assert job.wait(timeout=240) == (-9 if number == signal.SIGKILL else 128 + number)
        assert processes.once(marker, lambda found: not found) == []


class TestLocal:
    def test_ranks_get_their_environment(self):
        done = run("-n", "3", "--", "sh", "-c", "echo $SHOAL_RANK $SHOAL_SIZE $SHOAL_LOCAL_RANK $SHOAL_LOCAL_SIZE $SHOAL_MASTER_ADDR "
                   "$SHOAL_MASTER_PORT $SHOAL_JOB_ID")
        assert done.returncode == 0, done.stderr
        lines = sorted(line.split() for line in done.stdout.splitlines())
        assert [line[:4] for line in lines] == [[str(rank), "3", str(rank), "3"] for rank in range(3)]
        assert len({tuple(line[4:]) for line in lines}) == 1
        again = run("-n", "1", "--", "sh", "-c", "echo $SHOAL_JOB_ID").stdout.strip()
        assert again != lines[0][6]

    def test_the_port_of_rank_0_is_below_ephemeral_ports(self):
        """Systems give connections ports from 32768 on (ip_local_port_range)."""
        show = ("-n", "1", "--", "sh", "-c", "echo $SHOAL_MASTER_PORT")
        ports = [int(run(*show).stdout) for _ in range(10)]
        assert all(20000 <= port < 32768 for port in ports), ports
        assert len(set(ports)) > 1

    def test_each_job_gets_its_own_key_by_default(self):
        show = ("-n", "2", "--", "sh", "-c", "echo $SHOAL_JOB_KEY$SHOAL_JOB_KEY_FILE")
        first, second, other = run(*show).stdout.split() + run(*show).stdout.split()[:1]
        assert first == second
        assert len(first) == 64
        assert first != other
        assert run(*show, SHOAL_JOB_KEY="a-key-of-the-user").stdout.split() == 2 * ["a-key-of-the-user"]
        done = run(*show, SHOAL_JOB_KEY="short")
        assert done.returncode == 2
        assert re.search(r"SHOAL_JOB_KEY .*\b5 ", done.stderr), done.stderr  # characters

    def test_a_rank_without_the_key_fails(self):
        require_perf()
        done = run("-n", "2", "--grace", "0.1", "--", "sh", "-c", f"test $SHOAL_RANK = 1 && unset SHOAL_JOB_KEY; exec {PERF} -b 4 -e 4",
                   SHOAL_TIMEOUT="30")
        assert done.returncode != 0
        assert re.search("store at .*SHOAL_JOB_KEY", done.stderr), done.stderr

    def test_arguments_arrive_as_they_are(self):
        done = run("-n", "1", "--", "sh", "-c", 'printf "<%s>" "$@"', "sh", "-n", "--help", "a b", "", "--")
        assert done.stdout == "<-n><--help><a b><><-->"

    @pytest.mark.parametrize("arguments, expected", (
        ("", "command .*--$"), ("-- true", "-n .*--hosts "), ("-n 0 -- true", r"--ranks.*\b0\b"), ("-n x -- true", r"--ranks.*\bx\b"),
        ("-n 2", "command .*--$"), ("--hosts a:0 -- true", "--hosts: 'a:0'"), ("--hosts a,,b -- true", "--hosts: ''"),
        ("--hosts -oProxyCommand=x:1 -- true", "--hosts: '-oProxyCommand=x:1'"), ("-n 2 --hosts a:1 -- true", "-n .*--hosts "),
        ("-n 4097 -- true", r"--ranks.*\b4096\b"), ("--hosts a:4097 -- true", r"\b4096\b"),
        ("--hosts " + ",".join(16 * ["a:4096"] + ["b:1"]) + " -- true", r"\b65537\b.*\b65536\b")))
    def test_bad_arguments_are_refused(self, arguments, expected):
        done = run(*arguments.split())
        assert done.returncode == 2, done.stderr
        assert re.search(f"(?m){expected}", done.stderr + done.stdout), done.stderr + done.stdout

    def test_a_program_that_cannot_run_is_named_once(self):
        done = run("-n", "4", "--", "./no-such-program")
        assert done.returncode == 127
        assert done.stderr.count("no-such-program") == 1

    def test_the_first_failure_ends_all_with_its_status(self):
        done = run("-n", "3", "--grace", "0.1", "--", "sh", "-c", "test $SHOAL_RANK = 1 && exit 7; trap '' TERM; sleep 1000; sleep 1000")
        assert done.returncode == 7
        assert re.search(r"rank 1 .*\b7\b", done.stderr), done.stderr
        assert done.stderr.count("\n") == 1
        done = run("-n", "2", "--grace", "0.1", "--", "sh", "-c", "test $SHOAL_RANK = 0 && kill -SEGV $$; sleep 1000")
        assert done.returncode == 128 + signal.SIGSEGV
        assert re.search("rank 0 .*SIGSEGV", done.stderr), done.stderr

    def test_the_other_ranks_may_end_within_the_grace(self):
        done = run("-n", "2", "--grace", "30", "--", "sh", "-c", "test $SHOAL_RANK = 1 && exit 3; sleep 0.3; echo finished")
        assert (done.returncode, done.stdout) == (3, "finished\n")

    @pytest.mark.parametrize("options", ((), ("--keep-going",)), ids=("end", "keep_going"))
    def test_status_is_that_of_the_killed_rank_although_a_peer_fails_first(self, options):
        done = run("-n", "3", *options, "--", "sh", "-c",
                   "test $SHOAL_RANK = 0 && exit 1; test $SHOAL_RANK = 1 && sleep 0.3 && kill -KILL $$; sleep 0.1; exit 2")
        assert done.returncode == 128 + signal.SIGKILL
        assert re.search(r"rank 0 .*\b1;", done.stderr), done.stderr
        assert re.search(r"rank 1 .*\bSIGKILL\b", done.stderr), done.stderr

    def test_keep_going_lets_the_other_ranks_continue(self):
        done = run("-n", "3", "--keep-going", "--grace", "0", "--", "sh", "-c",
                   "test $SHOAL_RANK = 1 && exit 3; test $SHOAL_RANK = 2 && sleep 0.1 && kill -KILL $$; sleep 0.4; echo finished")
        assert (done.returncode, done.stdout) == (128 + signal.SIGKILL, "finished\n")
        assert re.search(r"rank 1 .*\b3; .* 2\b", done.stderr), done.stderr  # its status, ranks that still run
        assert re.search(r"rank 2 .*\bSIGKILL; .* 1\b", done.stderr), done.stderr
        done = run("-n", "2", "--keep-going", "--timeout", "0.4", "--", "sh", "-c", "test $SHOAL_RANK = 1 && exit 3; sleep 1000")
        assert done.returncode == 124  # the timeout still ends the job

    def test_timeout_names_the_ranks_that_still_run(self):
        done = run("-n", "3", "--timeout", "0.4", "--", "sh", "-c", "test $SHOAL_RANK = 1 || sleep 1000")
        assert done.returncode == 124
        assert "rank 0, rank 2" in done.stderr

    def test_tags_precede_whole_lines_of_both_streams(self):
        done = run("-n", "2", "--tag-output", "--", "sh", "-c", "printf 'a\\nb'; echo c >&2")
        assert sorted(done.stdout.splitlines()) == sorted(f"[rank {i}] {text}" for i in (0, 1) for text in "ab")
        assert sorted(done.stderr.splitlines()) == ["[rank 0] c", "[rank 1] c"]

    @SIGNALS
    def test_no_process_is_left_after(self, number):
        check_nothing_is_left(number, ["-n", "2"], 2)

    def test_signals_reach_the_ranks(self):
        job = subprocess.Popen([SHOAL, "run", "-n", "2", "--", "sh", "-c", "trap 'echo asked; exit 0' USR1; echo up; while :; do sleep 0.05; done"],
                               stdout=subprocess.PIPE, text=True)
        assert [job.stdout.readline() for _ in range(2)] == ["up\n"] * 2
        job.send_signal(signal.SIGUSR1)
        assert job.stdout.read() == "asked\nasked\n"
        job.stdout.close()
        assert job.wait(timeout=240) == 0


class TestHosts:
    """Uses a fake ssh that ignores the host name and runs the command on this machine."""

    @pytest.fixture(autouse=True)
    def new_folder(self, folder):
        self.folder = folder
        self.ssh = os.path.join(folder, "ssh")
        with open(self.ssh, "w", encoding="ascii") as file:
            file.write('#!/bin/sh\ntest "$1" = gone && { echo "no route to gone" >&2; exit 255; }\nHOST=$1; export HOST\nshift\nexec sh -c "$*"\n')
        os.chmod(self.ssh, 0o755)

    def on(self, hosts, *arguments, **environment):
        return run("--ssh-command", self.ssh, "--hosts", hosts, *arguments, **environment)

    def test_ranks_get_their_environment(self):
        done = self.on("a:2,me@b", "--", "sh", "-c", "echo $SHOAL_RANK $SHOAL_SIZE $SHOAL_LOCAL_RANK $SHOAL_LOCAL_SIZE $HOST $SHOAL_MASTER_ADDR "
                       "$SHOAL_TILE_BYTES $SHOAL_MASTER_PORT $SHOAL_JOB_ID", SHOAL_TILE_BYTES="65536")
        assert done.returncode == 0, done.stderr
        lines = sorted(line.split() for line in done.stdout.splitlines())
        assert [line[:7] for line in lines] == [["0", "3", "0", "2", "a", "a", "65536"], ["1", "3", "1", "2", "a", "a", "65536"],
                                               ["2", "3", "0", "1", "me@b", "a", "65536"]]
        assert len({tuple(line[7:]) for line in lines}) == 1

    def test_ranks_follow_the_network_topology(self):
        path = os.path.join(self.folder, "topology.json")
        with open(path, "w", encoding="ascii") as file:
            leaves = {"i-a": "1", "i-b": "2", "i-c": "1"}
            json.dump({"Instances": [{"InstanceId": name, "NetworkNodes": ["top", leaf]} for name, leaf in leaves.items()]}, file)
        command = ("--", "sh", "-c", "echo $SHOAL_RANK $HOST $SHOAL_MASTER_ADDR")
        for arguments, environment in ((("--rank-order", path), {}), ((), {"SHOAL_RANK_ORDER": "|cat " + path})):
            done = self.on("i-a:2,x@i-b:1,i-c:1,i-d:1", *arguments, *command, **environment)
            assert sorted(done.stdout.splitlines()) == ["0 i-a i-a", "1 i-a i-a", "2 i-c i-a", "3 x@i-b i-a", "4 i-d i-a"]
            assert re.search(r" i-d\b", done.stderr), done.stderr  # the only host that the topology does not have
            assert not re.search(r" i-[abc]\b", done.stderr), done.stderr
        done = self.on("i-a", "--rank-order", "none.json", *command)
        assert done.returncode == 1
        assert "none.json" in done.stderr

    def test_arguments_arrive_as_they_are(self):
        done = self.on("a", "--", "sh", "-c", 'printf "<%s>" "$@"', "sh", "it's", "$HOME", "a b", "")
        assert done.stdout == "<it's><$HOME><a b><>"

    def test_the_job_key_is_in_no_process_list(self):
        done = self.on("a", "--", "sh", "-c", "seen=$(cat /proc/[0-9]*/cmdline | tr '\\0' ' '); test ${#SHOAL_JOB_KEY} -ge 64 || exit 1; "
                       "case $seen in *$SHOAL_JOB_ID* | *$SHOAL_JOB_KEY*) echo yes ;; *SHOAL_JOB_KEY*) echo no ;; esac")
        assert done.stdout == "no\n"

    def test_a_key_in_a_file_of_this_host_reaches_all_hosts(self):
        path = os.path.join(self.folder, "key")
        with open(path, "w", encoding="ascii", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write("a key for the tests of shoal run\n")
        done = self.on("a,b", "--", "sh", "-c", "echo $SHOAL_JOB_KEY$SHOAL_JOB_KEY_FILE", SHOAL_JOB_KEY_FILE=path)
        assert done.stdout == 2 * "a key for the tests of shoal run\n"

    def test_the_first_failure_ends_all_with_its_status(self):
        done = self.on("a:2,b:1", "--grace", "0.1", "--", "sh", "-c", "test $SHOAL_RANK = 2 && exit 9; trap '' TERM; sleep 1000; sleep 1000")
        assert done.returncode == 9
        assert re.fullmatch(r"shoal run: rank 2 .*\b9\n", done.stderr), done.stderr

    def test_keep_going_lets_the_other_ranks_continue(self):
        done = self.on("a:2,b:1", "--keep-going", "--grace", "0", "--", "sh", "-c",
                       "test $SHOAL_RANK = 0 && exit 3; test $SHOAL_RANK = 2 && exit 4; sleep 0.5; echo finished")
        assert done.returncode in (3, 4)
        assert done.stdout == "finished\n"

    def test_an_unreachable_host_is_named(self):
        done = self.on("a,gone", "--grace", "0.1", "--", "sleep", "1000")
        assert done.returncode == 255
        assert "host gone" in done.stderr

    @SIGNALS
    def test_no_process_is_left_after(self, number):
        check_nothing_is_left(number, ["--ssh-command", self.ssh, "--hosts", "a:2,b:1"], 3)


class TestStart:
    @pytest.mark.parametrize("sizes", ((2, 3), (3, 2)))
    def test_all_ranks_report_different_sizes_at_once(self, sizes):
        began = time.monotonic()
        reports = start_ranks(tuple(enumerate(sizes)))
        assert time.monotonic() - began < 15, reports
        for _, text in reports:
            assert "size 2" in text and "size 3" in text, reports

    @pytest.mark.parametrize("ranks", ((0, 1, 1), (0, 0, 1)))
    def test_all_ranks_report_a_duplicate_rank_at_once(self, ranks):
        began = time.monotonic()
        reports = start_ranks([(rank, 3) for rank in ranks])
        assert time.monotonic() - began < 15, reports
        twice = [pid for (pid, _), rank in zip(reports, ranks, strict=True) if ranks.count(rank) == 2]
        for _, text in reports:
            assert all(f"process {pid} " in text for pid in twice), reports

    def test_a_long_start_names_the_missing_ranks(self):
        ((_, text),) = start_ranks([(0, 4)], timeout_s=2, SHOAL_WARN_AFTER="0.2")
        lines = [line for line in text.splitlines() if line.startswith("shoal: startup: rank 0 of 4 ")]
        assert lines and "1, 2, 3" in lines[-1], text  # the first lines may be from before the first step

    @pytest.mark.parametrize("host, expected", (("127.0.0.1", "127.0.0.1:"), ("no-such-host.invalid", "no-such-host.invalid")))
    def test_a_long_start_names_the_unreachable_store(self, host, expected):
        ((_, text),) = start_ranks([(1, 2)], timeout_s=2, SHOAL_WARN_AFTER="0.2", SHOAL_MASTER_ADDR=host)
        lines = [line for line in text.splitlines() if line.startswith("shoal: startup: rank 1 of 2 ")]
        assert lines and expected in lines[-1], text

    def test_the_soft_limit_of_open_files_is_raised(self):
        assert [text for _, text in start_ranks([(0, 2), (1, 2)], open_files=16)] == ["", ""]

    def test_a_job_beyond_the_limit_is_refused(self):
        ((_, text),) = start_ranks([(0, 65537)])
        assert re.search(r"SHOAL_SIZE.*\b65536\b", text), text

    def test_ipv6_addresses_are_accepted_in_brackets(self):
        try:
            port = support.unused_port("::1")
        except OSError:
            pytest.skip("this system has no loopback of IPv6")
        reports = start_ranks([(0, 2), (1, 2)], SHOAL_MASTER_ADDR=f"[::1]:{port}", SHOAL_MASTER_PORT="", SHOAL_HOST_ADDRESS="[::1]",
                           SHOAL_TRANSPORTS="tcp")
        assert [text for _, text in reports] == ["", ""]

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
    def test_two_users_of_one_host_connect_by_tcp(self):
        reports = start_ranks([(0, 2), (1, 2)], users=(None, 65534), SHOAL_FLIGHT_RECORD="off")
        assert [text for _, text in reports] == ["", ""]
        (_, text), _ = start_ranks([(0, 2), (1, 2)], users=(None, 65534), SHOAL_FLIGHT_RECORD="off", SHOAL_TRANSPORTS="shm")
        assert "SHOAL_TRANSPORTS=" in text, text  # rank 0 reports for all
