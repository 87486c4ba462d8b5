"""The stages of sleeping_stages.cc in torch.distributed.pipelining over Gloo. Started by bench/bubbles; prints the same line.

    shoal run -n 4 -- PYTHON bench/sleeping_stages/torch_stages.py --pipeline 1f1b --microbatches 8"""
import argparse
import ctypes
import json
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B  # noqa: E402

import pipeline_peer  # noqa: E402

SCHEDULES = {"simple": ScheduleGPipe, "1f1b": Schedule1F1B, "virtual": ScheduleInterleaved1F1B}


PR_SET_TIMERSLACK = 29  # <sys/prctl.h>


def sleep_until(end):
    time.sleep(max(0, end - time.perf_counter()))


class SleepingFunction(torch.autograd.Function):
    """Passes its input on, and a gradient of zeros to its weight. Its tensor operations are within the time of its sleep."""

    @staticmethod
    def forward(ctx, tensor, weight, forward_s, backward_s):  # pylint: disable=arguments-differ
        end = time.perf_counter() + forward_s
        ctx.weights, ctx.seconds = weight.numel(), backward_s
        output = tensor.clone()
        sleep_until(end)
        return output

    @staticmethod
    def backward(ctx, gradient):  # pylint: disable=arguments-differ
        end = time.perf_counter() + ctx.seconds
        of_weight = torch.zeros(1).expand(ctx.weights)
        sleep_until(end)
        return gradient, of_weight, None, None


class SleepingStage(torch.nn.Module):
    def __init__(self, forward_s, backward_s):
        super().__init__()
        self.forward_s, self.backward_s = forward_s, backward_s
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, tensor):
        return SleepingFunction.apply(tensor, self.weight, self.forward_s, self.backward_s)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--pipeline", choices=sorted(SCHEDULES), default="1f1b")
    parser.add_argument("--chunks", type=int, default=1)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10, help="measured steps; two more come before them")
    parser.add_argument("--forward-ms", type=float, default=20)
    parser.add_argument("--backward-ms", type=float, default=40)
    parser.add_argument("--bytes", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(1)
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1)  # otherwise each sleep takes 50 us longer
    rank, size = pipeline_peer.join()
    shape = torch.empty(1, options.bytes // 4, device="meta")
    stages = [PipelineStage(SleepingStage(options.forward_ms / 1e3 / options.chunks, options.backward_ms / 1e3 / options.chunks),
                            rank + chunk * size, size * options.chunks, torch.device("cpu"), input_args=(shape,), output_args=(shape,))
              for chunk in range(options.chunks)]
    schedule = SCHEDULES[options.pipeline](stages if options.pipeline == "virtual" else stages[0], options.microbatches,
                                           loss_fn=lambda output, target: output.mean())
    images, targets = torch.randn(options.microbatches, options.bytes // 4), torch.zeros(options.microbatches)
    seconds = []
    for _ in range(options.steps + 2):
        dist.barrier()
        started = time.perf_counter()
        inputs = (images,) if rank == 0 else ()
        schedule.step(*inputs, **({"target": targets} if rank == size - 1 else {}))
        dist.barrier()
        seconds.append(time.perf_counter() - started)
    if rank == 0:
        print(json.dumps({"seconds": seconds[2:]}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
