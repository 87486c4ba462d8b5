"""`shoal doctor --machine` on trees of machines that are not here, whole and broken; `--security-groups` on EC2's answers."""
import json
import os
import shutil
import subprocess
import tempfile
import unittest

import cases

SHOAL = os.path.join(cases.BUILD, "bin/shoal")
MAKE = os.path.join(cases.BUILD, "bin/make_fake_machine")
LIMITS = "Limit                     Soft Limit           Hard Limit           Units     \n"


def run(*arguments, **settings):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    environment["SHOAL_METADATA_URL"] = "off"
    environment.update(settings)
    return subprocess.run([SHOAL, "doctor", *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False)


class Machine(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = self.folder.name

    def put(self, path, text=""):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def build(self, kind="p5", memlock="unlimited", files="65536", congestion="cubic"):
        os.mkdir(os.path.join(self.root, "sys"))
        subprocess.run([MAKE, kind, os.path.join(self.root, "sys")], check=True, timeout=60)
        for index in range(32):
            self.put(f"dev/infiniband/uverbs{index}")
        self.put("sys/module/efa/version", "2.17.2g\n")
        self.put("sys/module/nvidia/version", "570.172.08\n")
        self.put("sys/module/nvidia_peermem/version", "570.172.08\n")
        self.put("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "5128\n")
        self.put("opt/amazon/efa/lib64/libfabric.so.1")
        self.put("opt/amazon/efa_installed_packages", "# EFA installer version: 1.43.2\n# other\n")
        self.put("proc/sys/net/ipv4/tcp_congestion_control", congestion + "\n")
        self.put("proc/self/limits", LIMITS + f"Max open files            {files}           1048576              files     \n"
                 f"Max locked memory         {memlock}            {memlock}            bytes     \n")

    def check(self, *expected, status=0):
        done = run("--machine", "--root", self.root)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        for each in expected:
            self.assertRegex(done.stdout, each)
        return done.stdout

    def test_a_machine_as_it_should_be(self):
        self.build()
        text = self.check("machine: p5.48xlarge", r"ok +EFA devices +32 of 32", r"ok +EFA driver +2.17.2g",
                          r"ok +/dev/infiniband/uverbs. +32 of 32", r"ok +libfabric for EFA +# EFA installer version: 1.43.2",
                          r"ok +huge pages of 2 MiB +5128",
                          r"ok +locked memory +unlimited", r"ok +TCP congestion control +cubic",
                          r"ok +GPUs and driver +8, NVIDIA 570.172.08", r"ok +GPUDirect RDMA +nvidia_peermem",
                          r"\? +security group +cannot be seen from inside\n +to do: all traffic in and out")
        self.assertNotIn("BAD", text)
        self.assertNotIn("note ", text)

    def test_each_thing_that_is_wrong_is_named_with_what_to_do(self):
        breaks = (("dev/infiniband/uverbs7", r"BAD +/dev/infiniband/uverbs. +31 of 32\n +to do: give the container the devices", 1),
                  ("sys/module/efa", r"BAD +EFA driver +not loaded\n +to do: modprobe efa", 1),
                  ("sys/module/nvidia", r"BAD +GPUs and driver +8, NVIDIA's driver is not loaded", 1),
                  ("sys/module/nvidia_peermem", r"note +GPUDirect RDMA +not seen", 0),
                  ("opt/amazon", r"note +libfabric for EFA +not in /opt/amazon/efa", 0),
                  ("sys/bus/pci/devices/0000:53:00.0", r"note +GPUs and driver +7, NVIDIA 570.172.08\n +to do: p5.48xlarge has 8", 0),
                  ("sys/bus/pci/devices/0000:4f:00.0", r"note +EFA devices +31 of 32\n +to do: launch with an EFA interface on each", 0),
                  ("sys/devices/pci0000:44/0000:44:00.0/0000:45:00.0/0000:46:01.1/0000:50:00.0/infiniband",
                   r"BAD +EFA devices +32 of 32, 1 without a driver", 1))
        for path, expected, status in breaks:
            with self.subTest(path=path), tempfile.TemporaryDirectory() as self.root:
                self.build()
                full = os.path.join(self.root, path)
                if os.path.isdir(full) and not os.path.islink(full):
                    shutil.rmtree(full)
                else:
                    os.remove(full)
                self.check(expected, status=status)

    def test_limits(self):
        self.build(memlock="8388608", files="1024")
        self.put("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0\n")
        self.check(r"BAD +locked memory +8 MiB\n +to do: memlock unlimited", r"note +open files +1024\n +to do: .*ulimit -n 65536",
                   r"note +huge pages of 2 MiB +0\n +to do: .*nr_hugepages", status=1)

    def test_congestion_control(self):
        self.build(congestion="bbr")
        self.check(r"note +TCP congestion control +bbr\n +to do: .*tcp_congestion_control=cubic")
        os.remove(os.path.join(self.root, "proc/sys/net/ipv4/tcp_congestion_control"))
        self.check(r"\? +TCP congestion control +not known")

    def test_dma_buffers_serve_as_well(self):
        self.build()
        shutil.rmtree(os.path.join(self.root, "sys/module/nvidia_peermem"))
        self.put("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.172.08\n")
        self.check(r"ok +GPUDirect RDMA +DMA buffers")

    def test_a_laptop_is_not_asked_for_efa(self):
        self.build("laptop", memlock="8388608")
        text = self.check(r"machine: a machine of no known type", r"note +locked memory +8 MiB\n +to do: .*needed for EFA only")
        self.assertNotIn("EFA devices", text)
        self.assertNotIn("GPU", text)

    def test_this_machine(self):
        done = run("--machine")
        self.assertIn(done.returncode, (0, 1))
        self.assertRegex(done.stdout, r"(ok|note|BAD) +locked memory")


class Libraries(unittest.TestCase):
    """What is loaded at run time, and is not there or is no such library: one line each, in both views."""

    def check(self, ofi, ucx, **settings):
        with tempfile.TemporaryDirectory() as folder:
            for arguments in (("--machine",), ("--folder", folder)):
                done = run(*arguments, **settings)
                self.assertIn(done.returncode, (0, 1), done.stderr)
                for transport, expected in (("ofi", ofi), ("ucx", ucx)):
                    lines = [line for line in done.stdout.splitlines() if line.startswith(transport + ": ")]
                    self.assertEqual(len(lines), 1, done.stdout)
                    self.assertRegex(lines[0], rf"^{transport}: (this build is without |{expected})")

    def test_missing(self):
        self.check("cannot use libfabric: /nowhere/libfabric.so.1: .*; install it", "cannot use UCX: /nowhere/libucp.so.0: .*; install it",
                   SHOAL_OFI_LIBRARY="/nowhere/libfabric.so.1", SHOAL_UCX_LIBRARY="/nowhere/libucp.so.0")

    def test_other_libraries(self):
        self.check("cannot use libfabric: it lacks functions", "cannot use UCX: it has no uc[ps]_", SHOAL_OFI_LIBRARY="libc.so.6",
                   SHOAL_UCX_LIBRARY="libc.so.6")

    def test_as_this_machine_has_them(self):
        self.check("(libfabric with .+ on .+|cannot use libfabric: )", r"(UCX \d+\.\d+|cannot use UCX: )")


class SecurityGroups(unittest.TestCase):
    def check(self, answer, status, expected):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(answer, file)
            file.flush()
            done = run("--security-groups", file.name)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        self.assertRegex(done.stdout + done.stderr, expected)

    @staticmethod
    def group(name, into, out):
        rule = lambda target: [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": target}], "IpRanges": []}] if target else \
            [{"IpProtocol": "-1", "UserIdGroupPairs": [], "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]
        return {"GroupId": name, "IpPermissions": rule(into), "IpPermissionsEgress": rule(out)}

    def test_rules(self):
        self.check({"SecurityGroups": [self.group("sg-1", "sg-2", "sg-1"), self.group("sg-2", "sg-2", "sg-2")]}, 0,
                   "ok +security group +sg-2 lets")
        self.check({"SecurityGroups": [self.group("sg-1", "sg-1", None)]}, 1,
                   r"BAD +security group +sg-1 lets itself in, not out\n.*0.0.0.0/0 is not")
        self.check({"SecurityGroups": [self.group("sg-1", None, "sg-1")]}, 1, "out, not in")
        self.check({"SecurityGroups": [self.group("sg-1", "sg-2", "sg-2")]}, 1, "neither in nor out")
        only_tcp = self.group("sg-1", "sg-1", "sg-1")
        only_tcp["IpPermissions"][0]["IpProtocol"] = "tcp"
        self.check({"SecurityGroups": [only_tcp]}, 1, "out, not in")

    def test_what_is_no_answer(self):
        for answer in ({}, [], {"SecurityGroups": []}, {"SecurityGroups": [{}]}, {"SecurityGroups": ["x"]}, 7):
            with self.subTest(answer=answer):
                self.check(answer, 1, "no answer of aws ec2|without GroupId")
        done = run("--security-groups", "none.json")
        self.assertEqual(done.returncode, 1)
        self.assertIn("No such file", done.stderr)


cases.main()
