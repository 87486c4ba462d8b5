"""One rank of a job with an injected failure: sums repeatedly over one library, and records the outcome of every call.

    failing_rank.py LIBRARY SCENARIO RANK SIZE FOLDER      (RANK -: taken from Open MPI)

Lines of FOLDER/rank.RANK.jsonl: {"at": seconds of the monotonic clock, "what": "ready" | "call" | "error" | "wrong" | "returned" | "done"}.
"""
import ctypes
import datetime
import json
import os
import sys
import time

import numpy as np

CALLS_BEFORE = 20      # calls before the failure
CALLS_AFTER = 10       # calls that a rank makes if a call returned that should have failed
ODD = 2                # the rank that makes a different call
COUNT = 200_000        # elements of a sum; 800 kB
DEADLINE_S = 5         # of a call, if the library has deadlines


def meet(what, rank, size):
    """Waits until all ranks have loaded their libraries, because the deadlines of the ranks are short."""
    folder = sys.argv[5]
    open(os.path.join(folder, f"{what}.{rank}"), "w", encoding="utf-8").close()
    while not all(os.path.exists(os.path.join(folder, f"{what}.{other}")) for other in range(size)):
        time.sleep(0.01)


class ShoalRank:
    TYPES = {"float32": 0, "int32": 6}
    OPS = {"sum": 0, "max": 3}

    class Config(ctypes.Structure):
        _fields_ = [("size_bytes", ctypes.c_size_t), ("magic", ctypes.c_uint32), ("version", ctypes.c_uint32), ("timeout_ms", ctypes.c_int64),
                    ("algorithm", ctypes.c_char_p), ("transports", ctypes.c_char_p)]

    def __init__(self, rank, size):
        self.library = ctypes.CDLL(os.environ["FAILING_LIBSHOAL"])
        self.library.shoal_last_error_message.restype = ctypes.c_char_p
        meet("numpy", rank, size)
        self.comm = ctypes.c_void_p()
        self.check(self.library.shoal_comm_create(None, ctypes.byref(self.comm)))
        self.rank, self.size = rank, size

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.library.shoal_last_error_message().decode())

    def all_reduce(self, data, op="sum"):
        self.check(self.library.shoal_all_reduce(self.comm, data.ctypes.data_as(ctypes.c_void_p), data.ctypes.data_as(ctypes.c_void_p),
                                                 ctypes.c_size_t(data.size), self.TYPES[data.dtype.name], self.OPS[op]))

    def broadcast(self, data, root):
        self.check(self.library.shoal_broadcast(self.comm, data.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(data.size),
                                                self.TYPES[data.dtype.name], root))


class GlooRank:
    def __init__(self, rank, size):
        import torch
        import torch.distributed
        meet("torch", rank, size)
        self.torch, self.rank, self.size = torch, rank, size
        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{os.environ['FAILING_PORT']}", rank=rank, world_size=size,
                                             timeout=datetime.timedelta(seconds=DEADLINE_S))

    def all_reduce(self, data, op="sum"):
        ops = self.torch.distributed.ReduceOp
        self.torch.distributed.all_reduce(self.torch.from_numpy(data), {"sum": ops.SUM, "max": ops.MAX}[op])

    def broadcast(self, data, root):
        self.torch.distributed.broadcast(self.torch.from_numpy(data), root)


class OpenMpiRank:
    def __init__(self, _rank, _size):
        self.library = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
        if self.library.MPI_Init(None, None) != 0:
            raise RuntimeError("MPI_Init failed")
        self.world = self.handle("ompi_mpi_comm_world")
        # As in a program that handles errors itself.
        self.library.MPI_Comm_set_errhandler(self.world, self.handle("ompi_mpi_errors_return"))
        rank, size = ctypes.c_int(), ctypes.c_int()
        self.library.MPI_Comm_rank(self.world, ctypes.byref(rank))
        self.library.MPI_Comm_size(self.world, ctypes.byref(size))
        self.rank, self.size = rank.value, size.value

    def handle(self, name):
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(self.library, name)))

    def check(self, code):
        if code != 0:
            text, length = ctypes.create_string_buffer(512), ctypes.c_int()
            self.library.MPI_Error_string(code, text, ctypes.byref(length))
            raise RuntimeError(text.value.decode())

    def type_of(self, data):
        return self.handle({"float32": "ompi_mpi_float", "int32": "ompi_mpi_int"}[data.dtype.name])

    def all_reduce(self, data, op="sum"):
        result = np.empty_like(data)
        self.check(self.library.MPI_Allreduce(data.ctypes.data_as(ctypes.c_void_p), result.ctypes.data_as(ctypes.c_void_p), data.size,
                                              self.type_of(data), self.handle(f"ompi_mpi_op_{op}"), self.world))
        data[:] = result

    def broadcast(self, data, root):
        self.check(self.library.MPI_Bcast(data.ctypes.data_as(ctypes.c_void_p), data.size, self.type_of(data), root, self.world))


def odd_call(library, scenario, base):
    """The call of rank ODD in place of a sum of COUNT float32."""
    if scenario == "count":
        library.all_reduce(np.full(COUNT // 2, base, np.float32))
    elif scenario == "count_above":
        library.all_reduce(np.full(COUNT * 2, base, np.float32))
    elif scenario == "type":
        library.all_reduce(np.full(COUNT, 1, np.int32))
    elif scenario == "operation":
        library.all_reduce(np.full(COUNT, base, np.float32), "max")
    elif scenario == "collective":
        library.broadcast(np.full(COUNT, base, np.float32), 0)
    elif scenario == "root":
        library.broadcast(np.full(COUNT, base, np.float32), 1)
    elif scenario == "leave":
        sys.exit(0)
    elif scenario == "order":  # two sums, the wrong one first; the other ranks make them in the opposite order
        library.all_reduce(np.full(COUNT // 4, base, np.float32))
        library.all_reduce(np.full(COUNT, base, np.float32))


def main(name, scenario, rank, size, folder):
    library = {"shoal": ShoalRank, "gloo": GlooRank, "openmpi": OpenMpiRank}[name.split("-")[0]](rank, size)
    out = open(os.path.join(folder, f"rank.{library.rank}.jsonl"), "w", encoding="utf-8", buffering=1)

    def report(what, **more):
        out.write(json.dumps({"at": time.monotonic(), "what": what, "pid": os.getpid(), **more}) + "\n")

    def sum_of(count, k):
        data = np.full(count, k % 7 + library.rank, np.float32)
        library.all_reduce(data)
        return np.all(data == library.size * (k % 7) + library.size * (library.size - 1) / 2)

    outside = scenario in ("kill", "stop", "wake", "junk")
    try:
        for k in range(CALLS_BEFORE):
            if not sum_of(COUNT, k):
                report("wrong", call=k)
        report("ready")
        if outside:
            k = CALLS_BEFORE
            while True:
                # All ranks stop at the same call: rank 0 checks the file and distributes the result in a sum.
                stop = np.full(1, os.path.exists(os.path.join(folder, "enough")) if library.rank == 0 else 0, np.float32)
                library.all_reduce(stop)
                if stop[0] != 0:
                    break
                if not sum_of(COUNT, k):
                    report("wrong", call=k)
                report("call", call=k)
                k += 1
        else:
            if library.rank == ODD:
                odd_call(library, scenario, float(library.rank))
                report("returned", right=False)
            else:
                if scenario == "root":
                    data = np.full(COUNT, library.rank, np.float32)
                    library.broadcast(data, 0)
                    right = not np.any(data)
                else:
                    right = sum_of(COUNT, 0)
                if scenario == "order":
                    right = sum_of(COUNT // 4, 0) and right
                report("returned", right=bool(right))
            for k in range(CALLS_AFTER):
                if not sum_of(COUNT, k):
                    report("wrong", call=k)
        report("done")
        if name == "openmpi":
            library.library.MPI_Finalize()  # otherwise mpirun kills ranks that are not done yet
    except Exception as error:  # any exception of the library counts
        report("error", text=str(error))
    out.close()
    os._exit(0)  # the exit path of the library after an error is not tested


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], None if sys.argv[3] == "-" else int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
