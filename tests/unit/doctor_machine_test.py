"""`shoal doctor --machine` on fake trees of other machines, complete and broken; `--security-groups` on answers of EC2."""
import json
import os
import re
import shutil
import subprocess

import pytest

import support

SHOAL = os.path.join(support.BUILD, "bin/shoal")
MAKE = os.path.join(support.BUILD, "bin/make_fake_machine")
LIMITS = "Limit                     Soft Limit           Hard Limit           Units     \n"


def run(*arguments, **settings):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    environment["SHOAL_METADATA_URL"] = "off"
    environment.update(settings)
    return subprocess.run([SHOAL, "doctor", *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False)


class TestMachine:
    @pytest.fixture(autouse=True)
    def new_root(self, folder):
        self.root = folder

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
        """`expected`: lines of the table, state, check and what was found; advice stands in the line below."""
        done = run("--machine", "--root", self.root)
        assert done.returncode == status, done.stdout + done.stderr
        for each in expected:
            assert re.search(each, done.stdout), done.stdout
        return done.stdout

    def test_a_complete_machine_passes(self):
        self.build()
        text = self.check("p5.48xlarge", r"ok +EFA devices +32 of 32", r"ok +EFA driver +2.17.2g",
                          r"ok +/dev/infiniband/uverbs. +32 of 32", r"ok +libfabric for EFA .*1.43.2", r"ok +huge pages of 2 MiB +5128",
                          r"ok +locked memory +unlimited", r"ok +TCP congestion control +cubic",
                          r"ok +GPUs and driver +8, NVIDIA 570.172.08", r"ok +GPUDirect RDMA +nvidia_peermem",
                          r"\? +security group .*\n.*describe-security-groups")
        assert "BAD" not in text
        assert "note " not in text

    @pytest.mark.parametrize("path, expected, status", (
        ("dev/infiniband/uverbs7", r"BAD +/dev/infiniband/uverbs. +31 of 32\n.*--device=/dev/infiniband", 1),
        ("sys/module/efa", r"BAD +EFA driver .*\n.*modprobe efa", 1),
        ("sys/module/nvidia", r"BAD +GPUs and driver +8, NVIDIA", 1),
        ("sys/module/nvidia_peermem", r"note +GPUDirect RDMA .*\n.*nvidia-peermem", 0),
        ("opt/amazon", r"note +libfabric for EFA .*/opt/amazon/efa\n.*aws-efa-installer", 0),
        ("sys/bus/pci/devices/0000:53:00.0", r"note +GPUs and driver +7, NVIDIA 570.172.08\n.*p5.48xlarge.* 8$", 0),
        ("sys/bus/pci/devices/0000:4f:00.0", r"note +EFA devices +31 of 32\n.*vpc.amazonaws.com/efa", 0),
        ("sys/devices/pci0000:44/0000:44:00.0/0000:45:00.0/0000:46:01.1/0000:50:00.0/infiniband",
         r"BAD +EFA devices +32 of 32, 1 .*driver", 1)),
        ids=("uverbs", "efa-module", "nvidia-module", "peermem-module", "libfabric", "gpu", "efa-device", "efa-driver"))
    def test_a_missing_part_is_named_with_advice(self, path, expected, status):
        self.build()
        full = os.path.join(self.root, path)
        if os.path.isdir(full) and not os.path.islink(full):
            shutil.rmtree(full)
        else:
            os.remove(full)
        self.check("(?m)" + expected, status=status)

    def test_limits(self):
        self.build(memlock="8388608", files="1024")
        self.put("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0\n")
        self.check(r"BAD +locked memory +8 MiB\n.*memlock unlimited", r"note +open files +1024\n.*ulimit -n 65536",
                   r"note +huge pages of 2 MiB +0\n.*nr_hugepages", status=1)

    def test_congestion_control(self):
        self.build(congestion="bbr")
        self.check(r"note +TCP congestion control +bbr\n.*tcp_congestion_control=cubic")
        os.remove(os.path.join(self.root, "proc/sys/net/ipv4/tcp_congestion_control"))
        self.check(r"\? +TCP congestion control")

    def test_dma_buffers_replace_nvidia_peermem(self):
        self.build()
        shutil.rmtree(os.path.join(self.root, "sys/module/nvidia_peermem"))
        self.put("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.172.08\n")
        self.check(r"ok +GPUDirect RDMA .*DMA")

    def test_a_laptop_needs_no_efa(self):
        self.build("laptop", memlock="8388608")
        text = self.check(r"note +locked memory +8 MiB\n.*EFA")
        assert "EFA devices" not in text
        assert "GPU" not in text

    def test_this_machine(self):
        done = run("--machine")
        assert done.returncode in (0, 1)
        assert re.search(r"(ok|note|BAD) +locked memory", done.stdout), done.stdout


@pytest.mark.parametrize("view", ("machine", "jobs"))
class TestLibraries:
    """One line about each library that is loaded at run time, in both views of shoal doctor, also where it cannot be used."""

    def check(self, view, folder, ofi, ucx, **settings):
        done = run("--machine", **settings) if view == "machine" else run("--folder", folder, **settings)
        assert done.returncode in (0, 1), done.stderr
        for transport, library, expected in (("ofi", "libfabric", ofi), ("ucx", "UCX", ucx)):
            lines = [line for line in done.stdout.splitlines() if line.startswith(transport + ": ")]
            assert len(lines) == 1, done.stdout
            if "this build is without" not in lines[0]:
                assert library in lines[0]
                assert re.search(expected, lines[0]), lines[0]

    def test_missing(self, view, folder):
        self.check(view, folder, "/nowhere/libfabric.so.1: .*libfabric1", "/nowhere/libucp.so.0: .*libucx0",
                   SHOAL_OFI_LIBRARY="/nowhere/libfabric.so.1", SHOAL_UCX_LIBRARY="/nowhere/libucp.so.0")

    def test_another_library_of_that_name(self, view, folder):
        self.check(view, folder, "libfabric1", r"\buc[ps]_", SHOAL_OFI_LIBRARY="libc.so.6", SHOAL_UCX_LIBRARY="libc.so.6")

    def test_those_of_this_machine(self, view, folder):
        self.check(view, folder, "libfabric", "UCX")


def group(name, into, out):
    """A security group whose rules let all of group `into` in and all to group `out` out; None: of and to all addresses."""
    def rules(target):
        pairs, ranges = ([{"GroupId": target}], []) if target else ([], [{"CidrIp": "0.0.0.0/0"}])
        return [{"IpProtocol": "-1", "UserIdGroupPairs": pairs, "IpRanges": ranges}]

    return {"GroupId": name, "IpPermissions": rules(into), "IpPermissionsEgress": rules(out)}


def only_tcp():
    found = group("sg-1", "sg-1", "sg-1")
    found["IpPermissions"][0]["IpProtocol"] = "tcp"
    return found


class TestSecurityGroups:
    def check(self, folder, answer, status, expected):
        path = os.path.join(folder, "sg.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(answer, file)
        done = run("--security-groups", path)
        assert done.returncode == status, done.stdout + done.stderr
        assert re.search(expected, done.stdout + done.stderr), done.stdout + done.stderr

    @pytest.mark.parametrize("groups, status, expected", (
        ([group("sg-1", "sg-2", "sg-1"), group("sg-2", "sg-2", "sg-2")], 0, "ok +security group +sg-2 "),
        ([group("sg-1", "sg-1", None)], 1, r"BAD +security group +sg-1 .*\bin, not out\n.*0\.0\.0\.0/0"),
        ([group("sg-1", None, "sg-1")], 1, r"BAD +security group +sg-1 .*\bout, not in\n"),
        ([group("sg-1", "sg-2", "sg-2")], 1, r"BAD +security group +sg-1 .*\bneither in nor out\n"),
        ([only_tcp()], 1, r"BAD +security group +sg-1 .*\bout, not in\n")),
        ids=("both", "in", "out", "neither", "only-tcp"))
    def test_rules(self, folder, groups, status, expected):
        self.check(folder, {"SecurityGroups": groups}, status, expected)

    @pytest.mark.parametrize("answer", ({}, [], {"SecurityGroups": []}, {"SecurityGroups": [{}]}, {"SecurityGroups": ["x"]}, 7), ids=str)
    def test_an_answer_without_groups_is_refused(self, folder, answer):
        self.check(folder, answer, 1, "sg.json: .*(SecurityGroups|GroupId)")

    def test_a_missing_file_is_refused(self):
        done = run("--security-groups", "none.json")
        assert done.returncode == 1
        assert re.search("none.json.*No such file", done.stderr), done.stderr
