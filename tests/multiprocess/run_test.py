"""shoal run: the environment of the ranks, exit codes, signals, and that nothing is left."""
import json
import os
import signal
import subprocess
import tempfile
import unittest

import cases
import processes

SHOAL = os.path.join(cases.BUILD, "bin/shoal")

# A rank of three processes that do not end when they are asked to.
STUBBORN = "trap '' INT TERM HUP; sleep 1000 & echo up; sleep 1000; sleep 1000"


def run(*arguments, timeout=60, **environment):
    return subprocess.run([SHOAL, "run", *arguments], capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
                          env=os.environ | environment, check=False)


class Local(unittest.TestCase):
    def test_every_rank_finds_its_place(self):
        done = run("-n", "3", "--", "sh", "-c", "echo $SHOAL_RANK $SHOAL_SIZE $SHOAL_LOCAL_RANK $SHOAL_LOCAL_SIZE $SHOAL_MASTER_ADDR "
                   "$SHOAL_MASTER_PORT $SHOAL_JOB_ID")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = sorted(line.split() for line in done.stdout.splitlines())
        self.assertEqual([line[:4] for line in lines], [[str(rank), "3", str(rank), "3"] for rank in range(3)])
        self.assertEqual(len({tuple(line[4:]) for line in lines}), 1)
        again = run("-n", "1", "--", "sh", "-c", "echo $SHOAL_JOB_ID").stdout.strip()
        self.assertNotEqual(again, lines[0][6])

    def test_each_job_has_a_key_of_its_own_unless_one_is_given(self):
        show = ("-n", "2", "--", "sh", "-c", "echo $SHOAL_JOB_KEY$SHOAL_JOB_KEY_FILE")
        first, second, other = run(*show).stdout.split() + run(*show).stdout.split()[:1]
        self.assertEqual(first, second)
        self.assertEqual(len(first), 64)
        self.assertNotEqual(first, other)
        self.assertEqual(run(*show, SHOAL_JOB_KEY="a-key-of-the-user").stdout.split(), 2 * ["a-key-of-the-user"])
        done = run(*show, SHOAL_JOB_KEY="short")
        self.assertEqual(done.returncode, 2)
        self.assertIn("SHOAL_JOB_KEY holds a key of 5 characters", done.stderr)

    def test_a_rank_without_the_key_is_told_so(self):
        perf = os.path.join(cases.BUILD, "bin/shoal_perf")
        if not os.path.exists(perf):
            self.skipTest("no shoal_perf in this build")
        done = run("-n", "2", "--grace", "0.1", "--", "sh", "-c", f"test $SHOAL_RANK = 1 && unset SHOAL_JOB_KEY; exec {perf} -b 4 -e 4",
                   SHOAL_TIMEOUT="30")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("does not hold this job's key", done.stderr)

    def test_arguments_arrive_as_they_are(self):
        done = run("-n", "1", "--", "sh", "-c", 'printf "<%s>" "$@"', "sh", "-n", "--help", "a b", "", "--")
        self.assertEqual(done.stdout, "<-n><--help><a b><><-->")

    def test_bad_arguments_are_refused_with_a_reason(self):
        for arguments, words in (([], "nothing to run"), (["--", "true"], "either -n RANKS or --hosts"), (["-n", "0", "--", "true"], "range"),
                                 (["-n", "x", "--", "true"], "range"), (["-n", "2"], "nothing to run"),
                                 (["--hosts", "a:0", "--", "true"], "a:0"), (["--hosts", "a,,b", "--", "true"], "HOST:RANKS"),
                                 (["--hosts", "-oProxyCommand=x:1", "--", "true"], "HOST:RANKS"),
                                 (["-n", "2", "--hosts", "a:1", "--", "true"], "either -n RANKS or --hosts")):
            with self.subTest(arguments=arguments):
                done = run(*arguments)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(words, done.stderr + done.stdout)

    def test_a_program_that_cannot_run_is_named_once(self):
        done = run("-n", "4", "--", "./no-such-program")
        self.assertEqual(done.returncode, 127)
        self.assertEqual(done.stderr.count("no-such-program"), 1)

    def test_the_first_failure_gives_the_status_and_ends_the_rest(self):
        done = run("-n", "3", "--grace", "0.1", "--", "sh", "-c", "test $SHOAL_RANK = 1 && exit 7; trap '' TERM; sleep 1000; sleep 1000")
        self.assertEqual(done.returncode, 7)
        self.assertIn("rank 1 exited with status 7", done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1)
        done = run("-n", "2", "--grace", "0.1", "--", "sh", "-c", "test $SHOAL_RANK = 0 && kill -SEGV $$; sleep 1000")
        self.assertEqual(done.returncode, 128 + signal.SIGSEGV)
        self.assertIn("rank 0 was killed by SIGSEGV", done.stderr)

    def test_others_may_end_by_themselves_within_the_grace(self):
        done = run("-n", "2", "--grace", "30", "--", "sh", "-c", "test $SHOAL_RANK = 1 && exit 3; sleep 0.3; echo finished")
        self.assertEqual((done.returncode, done.stdout), (3, "finished\n"))

    def test_others_run_on_where_asked(self):
        done = run("-n", "3", "--keep-going", "--grace", "0", "--", "sh", "-c",
                   "test $SHOAL_RANK = 1 && exit 3; test $SHOAL_RANK = 2 && sleep 0.1 && kill -KILL $$; sleep 0.4; echo finished")
        self.assertEqual((done.returncode, done.stdout), (3, "finished\n"))
        self.assertIn("rank 1 exited with status 3; still running: 2", done.stderr)
        self.assertIn("rank 2 was killed by SIGKILL; still running: 1", done.stderr)
        done = run("-n", "2", "--keep-going", "--timeout", "0.4", "--", "sh", "-c", "test $SHOAL_RANK = 1 && exit 3; sleep 1000")
        self.assertEqual(done.returncode, 124)  # other reasons to end the job hold

    def test_timeout_names_who_still_runs(self):
        done = run("-n", "3", "--timeout", "0.4", "--", "sh", "-c", "test $SHOAL_RANK = 1 || sleep 1000")
        self.assertEqual(done.returncode, 124)
        self.assertIn("rank 0, rank 2", done.stderr)

    def test_tags_go_before_whole_lines_of_both_streams(self):
        done = run("-n", "2", "--tag-output", "--", "sh", "-c", "printf 'a\\nb'; echo c >&2")
        self.assertEqual(sorted(done.stdout.splitlines()), sorted(f"[rank {i}] {text}" for i in (0, 1) for text in "ab"))
        self.assertEqual(sorted(done.stderr.splitlines()), ["[rank 0] c", "[rank 1] c"])

    def check_nothing_is_left(self, arguments, count):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
            with self.subTest(signal=number.name):
                marker = f"SHOAL_TEST_MARKER=run-{os.getpid()}-{number}"
                name, value = marker.split("=")
                with subprocess.Popen([SHOAL, "run", *arguments, "--grace", "0.1", "--", "sh", "-c", STUBBORN], stdout=subprocess.PIPE, text=True,
                                      env=os.environ | {name: value}) as job, processes.ended_after(marker):
                    for _ in range(count):
                        self.assertEqual(job.stdout.readline(), "up\n")
                    # The last process of a rank comes after its word.
                    self.assertGreaterEqual(len(processes.once(marker, lambda found: len(found) >= 3 * count)), 3 * count)
                    job.send_signal(number)
                    self.assertEqual(job.wait(timeout=30), -9 if number == signal.SIGKILL else 128 + number)
                    self.assertEqual(processes.once(marker, lambda found: not found), [])

    def test_nothing_is_left_however_it_ends(self):
        self.check_nothing_is_left(["-n", "2"], 2)

    def test_signals_reach_the_ranks(self):
        job = subprocess.Popen([SHOAL, "run", "-n", "2", "--", "sh", "-c", "trap 'echo asked; exit 0' USR1; echo up; while :; do sleep 0.05; done"],
                               stdout=subprocess.PIPE, text=True)
        self.assertEqual([job.stdout.readline() for _ in range(2)], ["up\n"] * 2)
        job.send_signal(signal.SIGUSR1)
        self.assertEqual(job.stdout.read(), "asked\nasked\n")
        job.stdout.close()
        self.assertEqual(job.wait(timeout=30), 0)


class Hosts(Local):
    """By a command that takes ssh's place: it drops the host's name and runs the rest here."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.ssh = os.path.join(cls.folder.name, "ssh")
        with open(cls.ssh, "w", encoding="ascii") as file:
            file.write('#!/bin/sh\ntest "$1" = gone && { echo "no route to gone" >&2; exit 255; }\nHOST=$1; export HOST\nshift\nexec sh -c "$*"\n')
        os.chmod(cls.ssh, 0o755)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def on(self, hosts, *arguments, **environment):
        return run("--ssh-command", self.ssh, "--hosts", hosts, *arguments, **environment)

    def test_every_rank_finds_its_place(self):
        done = self.on("a:2,me@b", "--", "sh", "-c", "echo $SHOAL_RANK $SHOAL_SIZE $SHOAL_LOCAL_RANK $SHOAL_LOCAL_SIZE $HOST $SHOAL_MASTER_ADDR "
                       "$SHOAL_TILE_BYTES $SHOAL_MASTER_PORT $SHOAL_JOB_ID", SHOAL_TILE_BYTES="65536")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = sorted(line.split() for line in done.stdout.splitlines())
        self.assertEqual([line[:7] for line in lines], [["0", "3", "0", "2", "a", "a", "65536"], ["1", "3", "1", "2", "a", "a", "65536"],
                                                        ["2", "3", "0", "1", "me@b", "a", "65536"]])
        self.assertEqual(len({tuple(line[7:]) for line in lines}), 1)

    def test_ranks_follow_the_order_of_the_network(self):
        path = os.path.join(self.folder.name, "topology.json")
        with open(path, "w", encoding="ascii") as file:
            leaves = {"i-a": "1", "i-b": "2", "i-c": "1"}
            json.dump({"Instances": [{"InstanceId": name, "NetworkNodes": ["top", leaf]} for name, leaf in leaves.items()]}, file)
        command = ("--", "sh", "-c", "echo $SHOAL_RANK $HOST $SHOAL_MASTER_ADDR")
        for arguments, environment in ((("--rank-order", path), {}), ((), {"SHOAL_RANK_ORDER": "|cat " + path})):
            done = self.on("i-a:2,x@i-b:1,i-c:1,i-d:1", *arguments, *command, **environment)
            self.assertEqual(sorted(done.stdout.splitlines()), ["0 i-a i-a", "1 i-a i-a", "2 i-c i-a", "3 x@i-b i-a", "4 i-d i-a"])
            self.assertIn("does not have i-d", done.stderr)
        done = self.on("i-a", "--rank-order", "none.json", *command)
        self.assertEqual(done.returncode, 1)
        self.assertIn("rank order from none.json", done.stderr)

    def test_arguments_arrive_as_they_are(self):
        done = self.on("a", "--", "sh", "-c", 'printf "<%s>" "$@"', "sh", "it's", "$HOME", "a b", "")
        self.assertEqual(done.stdout, "<it's><$HOME><a b><>")

    def test_the_job_key_is_in_no_process_list(self):
        done = self.on("a", "--", "sh", "-c", "seen=$(cat /proc/[0-9]*/cmdline | tr '\\0' ' '); test ${#SHOAL_JOB_KEY} -ge 64 || exit 1; "
                       "case $seen in *$SHOAL_JOB_ID* | *$SHOAL_JOB_KEY*) echo yes ;; *SHOAL_JOB_KEY*) echo no ;; esac")
        self.assertEqual(done.stdout, "no\n")

    def test_a_key_in_a_file_of_this_host_goes_with_the_job(self):
        path = os.path.join(self.folder.name, "key")
        with open(path, "w", encoding="ascii", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write("a key for the tests of shoal run\n")
        done = self.on("a,b", "--", "sh", "-c", "echo $SHOAL_JOB_KEY$SHOAL_JOB_KEY_FILE", SHOAL_JOB_KEY_FILE=path)
        self.assertEqual(done.stdout, 2 * "a key for the tests of shoal run\n")

    def test_the_first_failure_gives_the_status_and_ends_the_rest(self):
        done = self.on("a:2,b:1", "--grace", "0.1", "--", "sh", "-c", "test $SHOAL_RANK = 2 && exit 9; trap '' TERM; sleep 1000; sleep 1000")
        self.assertEqual(done.returncode, 9)
        self.assertEqual(done.stderr, "shoal run: rank 2 exited with status 9\n")

    def test_others_run_on_where_asked(self):
        done = self.on("a:2,b:1", "--keep-going", "--grace", "0", "--", "sh", "-c",
                       "test $SHOAL_RANK = 0 && exit 3; test $SHOAL_RANK = 2 && exit 4; sleep 0.5; echo finished")
        self.assertIn(done.returncode, (3, 4))
        self.assertEqual(done.stdout, "finished\n")

    def test_a_host_that_cannot_be_reached_is_named(self):
        done = self.on("a,gone", "--grace", "0.1", "--", "sleep", "1000")
        self.assertEqual(done.returncode, 255)
        self.assertIn("host gone", done.stderr)

    def test_nothing_is_left_however_it_ends(self):
        self.check_nothing_is_left(["--ssh-command", self.ssh, "--hosts", "a:2,b:1"], 3)

    # What does not depend on where the ranks are is proven once.
    test_a_rank_without_the_key_is_told_so = None
    test_each_job_has_a_key_of_its_own_unless_one_is_given = None
    test_bad_arguments_are_refused_with_a_reason = None
    test_a_program_that_cannot_run_is_named_once = None
    test_others_may_end_by_themselves_within_the_grace = None
    test_timeout_names_who_still_runs = None
    test_tags_go_before_whole_lines_of_both_streams = None
    test_signals_reach_the_ranks = None


cases.main()
