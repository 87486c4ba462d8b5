"""Trains a network in a pipeline of torch.distributed.pipelining over Gloo, cut where a partition file of `shoal partition` cuts it.

    shoal run -n 2 -- PYTHON bench/pipeline_peer.py --model resnet18 --profile p.json --partition cuts.json --batch 32 --microbatches 8

Part of `pipelines`. The network is that of tests/torch/reference_models.py. Ends with one line of JSON from the last rank: the seconds of
each measured step, from one barrier to the next, and the losses."""
import argparse
import json
import os
import socket
import sys
import time
from datetime import timedelta

REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(REPOSITORY, "tests/torch"))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe  # noqa: E402

import reference_models  # noqa: E402

SCHEDULES = {"simple": ScheduleGPipe, "1f1b": Schedule1F1B}


def parameter_bytes(module):
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def first_children(model, profile, partition):
    """Positions of the children of `model` at which its stages begin: in front of them are as many bytes of parameters as in the units in
    front of each cut. Children without parameters belong to the stage before, as in shoal."""
    units = {unit["name"]: at for at, unit in enumerate(profile["units"])}
    children = list(model.children())
    firsts = [0]
    for cut in partition["cuts"]:
        at = cut if isinstance(cut, int) else units[cut]
        before = sum(unit["parameter_bytes"] for unit in profile["units"][:at])
        fitting = [child for child in range(len(children))
                   if parameter_bytes(children[child]) and sum(map(parameter_bytes, children[:child])) == before]
        if len(fitting) != 1:
            raise SystemExit(f"no child of the Python network begins at cut {cut} with {before} bytes of parameters in front of it")
        firsts.append(fitting[0])
    return firsts


def join():
    rank, size = int(os.environ["SHOAL_RANK"]), int(os.environ["SHOAL_SIZE"])
    # SHOAL_MASTER_PORT is used by `shoal run`: the store takes the next one.
    address, port = os.environ.get("SHOAL_MASTER_ADDR", "127.0.0.1"), int(os.environ["SHOAL_MASTER_PORT"]) + 1
    timeout = timedelta(seconds=120)
    store = dist.TCPStore(address, port, size, is_master=rank == 0, timeout=timeout)
    if "SHOAL_HOST_ADDRESS" in os.environ:  # Gloo needs an interface
        os.environ.setdefault("GLOO_SOCKET_IFNAME", next(name for _, name in socket.if_nameindex() if name.startswith("eth")))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    return rank, size


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--profile", required=True)
    parser.add_argument("--partition", required=True)
    parser.add_argument("--pipeline", choices=sorted(SCHEDULES), default="1f1b")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--microbatches", type=int, required=True)
    parser.add_argument("--steps", type=int, default=6, help="measured steps; two more come before them")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with open(options.profile, encoding="utf-8") as file:
        profile = json.load(file)
    with open(options.partition, encoding="utf-8") as file:
        partition = json.load(file)
    rank, size = join()

    torch.manual_seed(1)
    model = reference_models.make(options.model, 3, 10)
    firsts = [*first_children(model, profile, partition), len(list(model.children()))]
    if len(firsts) != size + 1:
        raise SystemExit(f"{options.partition} has {len(firsts) - 1} stages for {size} ranks")
    stages = [model[firsts[at]:firsts[at + 1]] for at in range(size)]
    microbatch = torch.empty(options.batch // options.microbatches, 3, 32, 32, device="meta")
    shapes = [microbatch]
    for stage in stages:  # shapes without a forward on zeros, which would count as a batch in BatchNorm
        with torch.no_grad():
            meta = reference_models.make(options.model, 3, 10).to("meta")[firsts[len(shapes) - 1]:firsts[len(shapes)]]
            shapes.append(meta(shapes[-1]))
    stage = PipelineStage(stages[rank], rank, size, torch.device("cpu"), input_args=(shapes[rank],), output_args=(shapes[rank + 1],))
    schedule = SCHEDULES[options.pipeline](stage, options.microbatches, loss_fn=torch.nn.functional.cross_entropy)
    optimizer = torch.optim.SGD(stages[rank].parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(options.batch, 3, 32, 32)
    targets = torch.randint(10, (options.batch,))

    seconds, losses = [], []
    for _ in range(options.steps + 2):
        dist.barrier()
        started = time.perf_counter()
        optimizer.zero_grad()
        found = []
        if rank == 0:
            schedule.step(images)
        elif rank == size - 1:
            schedule.step(target=targets, losses=found)
        else:
            schedule.step()
        optimizer.step()
        dist.barrier()
        seconds.append(time.perf_counter() - started)
        losses.append(sum(loss.item() for loss in found) / len(found) if found else None)
    if rank == size - 1:
        print(json.dumps({"seconds": seconds[2:], "losses": losses[2:]}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
