"""libshoal_cuda.so as it was built: resources of its kernels, devices that it has code for; it loads without a driver and reports that."""
import ctypes
import glob
import os
import re
import shutil
import subprocess

import pytest

import support

LIBRARY = os.path.join(support.BUILD, "lib/libshoal_cuda.so")
OBJECTS = os.path.join(support.BUILD, "kernels/CMakeFiles/shoal_cuda.dir")
KERNEL_FILES = [path for path in glob.glob(os.path.join(support.REPOSITORY, "kernels/*.cu")) if not path.endswith("runtime_api.cu")]
THREADS = 512  # of a block: kThreads of kernels/partition.h
REGISTERS = 65536  # of a multiprocessor


def kernels():
    """(architecture, name, registers, bytes of stack, bytes spilled) of every kernel, from the output of ptxas."""
    found = []
    for log in glob.glob(OBJECTS + "/*.cu.o.ptxas"):
        name = architecture = stack = spilled = None
        for line in open(log, encoding="utf-8"):
            if match := re.search(r"Compiling entry function '(\S+)' for '(\S+)'", line):
                name, architecture = match[1], match[2]
            elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
                stack, spilled = int(match[1]), int(match[2]) + int(match[3])
            elif (match := re.search(r"Used (\d+) registers", line)) and name:
                found.append((architecture, name, int(match[1]), stack, spilled))
                name = None
    return found


def targets():
    """What nvcc compiles for: {"sm_90", "compute_90"} for code and PTX of that architecture."""
    with open(os.path.join(support.BUILD, "build.ninja"), encoding="utf-8") as file:
        return set(re.findall(r"--generate-code=arch=compute_\d+,code=\[(\w+)\]", file.read()))


class TestResources:
    def test_every_kernel_was_compiled_for_every_device(self):
        found = kernels()
        by_architecture = {a: {k[1] for k in found if k[0] == a} for a in {k[0] for k in found}}
        # By default sm_80 and sm_90 (kernels/CMakeLists.txt); tests/run builds for sm_90 alone.
        assert set(by_architecture) == {target for target in targets() if target.startswith("sm_")}
        names = by_architecture["sm_90"]
        assert all(each == names for each in by_architecture.values())
        # 6 floats x 5, 4 unsigned x (sum, prod, band, bor, bxor), 8 integers x (min, max, avg); reduce_nway and all_reduce_fused.
        each = 6 * 5 + 4 * 5 + 8 * 3
        for kernel, count in (("reduce_nway", each), ("all_reduce_fused", each), ("copy_segments", 1)):
            assert len([name for name in names if re.search(rf"\d{kernel}", name)]) == count, kernel
        logs = {os.path.basename(path)[:-len(".o.ptxas")] for path in glob.glob(OBJECTS + "/*.cu.o.ptxas")}
        assert logs >= {os.path.basename(path) for path in KERNEL_FILES}

    def test_no_kernel_spills_and_every_block_fits(self):
        found = kernels()
        assert found
        assert [kernel for kernel in found if kernel[4] > 0] == [], "spilled bytes"
        assert [kernel for kernel in found if kernel[3] > 0] == [], "bytes of stack"
        assert [kernel for kernel in found if kernel[2] > REGISTERS // THREADS] == [], "registers"

    def test_later_devices_have_ptx(self):
        assert "compute_90" in targets()
        if not shutil.which("cuobjdump"):
            return  # then only the compiler's command line is checked
        listed = subprocess.run(["cuobjdump", "--list-ptx", LIBRARY], capture_output=True, text=True, check=True).stdout
        assert "sm_90" in listed


class TestLoading:
    def entry(self):
        function = ctypes.CDLL(LIBRARY).shoal_cuda_api
        function.restype = ctypes.c_void_p
        return function

    def test_loads_without_a_driver_and_reports_that(self):
        needed = subprocess.run(["readelf", "-d", LIBRARY], capture_output=True, text=True, check=True).stdout
        assert "libcuda.so" not in needed
        assert "libcudart" not in needed
        message = ctypes.create_string_buffer(512)
        api = self.entry()(2, message, ctypes.sizeof(message))
        if api:
            pytest.skip("there is a GPU: tests/gpu tests the rest")
        assert re.search("driver|GPU|device", message.value.decode()), message.value.decode()

    def test_doctor_reports_the_driver(self):
        shown = subprocess.run([os.path.join(support.BUILD, "bin/shoal"), "doctor"], capture_output=True, text=True, check=True).stdout
        assert re.search(r"(?m)^cuda: (?!.*CUDA: ).*(driver|GPU|device)", shown), shown

    def test_another_version_is_refused(self):
        message = ctypes.create_string_buffer(512)
        assert self.entry()(1, message, ctypes.sizeof(message)) is None
        assert re.search(r"\b2\b.*\b1\b", message.value.decode()), message.value.decode()  # the versions of both libraries

    def test_offers_one_function(self):
        shown = subprocess.run(["nm", "-DC", "--defined-only", LIBRARY], capture_output=True, text=True, check=True).stdout
        assert [line.split()[-1] for line in shown.splitlines()] == ["shoal_cuda_api"]
