"""libshoal_cuda.so as it was built: what its kernels need of a multiprocessor, for which devices there is code, and that it loads, and
says what is missing, where there is no driver."""
import ctypes
import glob
import os
import re
import shutil
import subprocess
import unittest

import cases

LIBRARY = os.path.join(cases.BUILD, "lib/libshoal_cuda.so")
OBJECTS = os.path.join(cases.BUILD, "kernels/CMakeFiles/shoal_cuda.dir")
KERNEL_FILES = [path for path in glob.glob(os.path.join(cases.REPOSITORY, "kernels/*.cu")) if not path.endswith("runtime_api.cu")]
# kThreads of kernels/partition.h: with more registers a block would not start.
THREADS = 512
REGISTERS = 65536


def kernels():
    """(architecture, name, registers, bytes of stack, bytes spilled) of every kernel, from what ptxas has said."""
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


class Resources(unittest.TestCase):
    def test_every_kernel_was_compiled_for_every_device(self):
        found = kernels()
        by_architecture = {a: {k[1] for k in found if k[0] == a} for a in {k[0] for k in found}}
        self.assertGreaterEqual(set(by_architecture), {"sm_80", "sm_90"})
        self.assertEqual(by_architecture["sm_80"], by_architecture["sm_90"])
        names = by_architecture["sm_90"]
        # 6 floats x 5, 4 unsigned x (sum, prod, band, bor, bxor), 8 integers x (min, max, avg); reduce_nway and all_reduce_fused.
        each = 6 * 5 + 4 * 5 + 8 * 3
        for kernel, count in (("reduce_nway", each), ("all_reduce_fused", each), ("copy_segments", 1)):
            self.assertEqual(len([name for name in names if re.search(rf"\d{kernel}", name)]), count, kernel)
        logs = {os.path.basename(path)[:-len(".o.ptxas")] for path in glob.glob(OBJECTS + "/*.cu.o.ptxas")}
        self.assertGreaterEqual(logs, {os.path.basename(path) for path in KERNEL_FILES})

    def test_nothing_is_spilled_and_blocks_fit(self):
        for architecture, name, registers, stack, spilled in kernels():
            with self.subTest(kernel=name, architecture=architecture):
                self.assertEqual(spilled, 0)
                self.assertEqual(stack, 0)
                self.assertLessEqual(registers, REGISTERS // THREADS)

    def test_later_devices_have_ptx(self):
        with open(os.path.join(cases.BUILD, "build.ninja"), encoding="utf-8") as file:
            flags = re.findall(r"--generate-code=\S+", file.read())
        self.assertIn("--generate-code=arch=compute_90,code=[compute_90]", {flag.replace('"', "") for flag in flags})
        if not shutil.which("cuobjdump"):
            return  # only the command line can be seen then
        listed = subprocess.run(["cuobjdump", "--list-ptx", LIBRARY], capture_output=True, text=True, check=True).stdout
        self.assertIn("sm_90", listed)


class Loading(unittest.TestCase):
    def entry(self):
        function = ctypes.CDLL(LIBRARY).shoal_cuda_api
        function.restype = ctypes.c_void_p
        return function

    def test_needs_no_driver_to_be_loaded_and_says_what_is_missing(self):
        needed = subprocess.run(["readelf", "-d", LIBRARY], capture_output=True, text=True, check=True).stdout
        self.assertNotIn("libcuda.so", needed)
        self.assertNotIn("libcudart", needed)
        message = ctypes.create_string_buffer(512)
        api = self.entry()(2, message, ctypes.sizeof(message))
        if api:
            self.skipTest("there is a GPU: tests/gpu has the rest")
        self.assertRegex(message.value.decode(), "driver|GPU|device")

    def test_doctor_says_what_there_is(self):
        shown = subprocess.run([os.path.join(cases.BUILD, "bin/shoal"), "doctor"], capture_output=True, text=True, check=True).stdout
        self.assertRegex(shown, r"(?m)^cuda: (not available: (?!CUDA).*(driver|GPU|device)|driver for CUDA \d+\.\d+; 0 )")

    def test_another_version_is_refused(self):
        message = ctypes.create_string_buffer(512)
        self.assertIsNone(self.entry()(1, message, ctypes.sizeof(message)))
        self.assertRegex(message.value.decode(), "interface 2.*wants 1")

    def test_offers_one_function(self):
        shown = subprocess.run(["nm", "-DC", "--defined-only", LIBRARY], capture_output=True, text=True, check=True).stdout
        self.assertEqual([line.split()[-1] for line in shown.splitlines()], ["shoal_cuda_api"])


cases.main()
