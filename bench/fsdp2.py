"""Trains a small transformer with PyTorch's FSDP2 over shoal and over Gloo, in turns in the same processes: time per step, and whether the
losses agree.

    bench/cluster 2x2 --rate 1gbit -- PYTHON bench/fsdp2.py          PYTHON: that of the environment with torch

Ranks find each other through the environment of bench/cluster or `shoal run`. Ends with one line of JSON from rank 0; exit status 1 if the
losses differ. The first step of each library is not measured."""
import argparse
import json
import os
import socket
import statistics
import sys
import time
from datetime import timedelta

REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.environ.get("SHOAL_PYTHON", os.path.join(REPOSITORY, "build/release/python")))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

import shoal  # noqa: E402,F401  (registers the backend)
from this_machine import machine  # noqa: E402

SEED = 11
VOCABULARY, TOKENS = 512, 16
TOLERANCE = 1e-4  # relative; the libraries add in different orders, and training amplifies the difference


class Transformer(torch.nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        torch.manual_seed(SEED)
        self.embedding = torch.nn.Embedding(VOCABULARY, width)
        layer = dict(nhead=4, dim_feedforward=4 * width, dropout=0.0, batch_first=True)
        self.blocks = torch.nn.ModuleList(torch.nn.TransformerEncoderLayer(width, **layer) for _ in range(layers))
        self.head = torch.nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


class Library:
    """One library with its own model, data and optimizer."""

    def __init__(self, name, group, options):
        self.name = name
        self.group = group
        model = Transformer(options.width, options.layers)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        mesh = DeviceMesh.from_group(group, "cpu")
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        self.model = fully_shard(model, mesh=mesh)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.data = torch.Generator().manual_seed(SEED + dist.get_rank())
        self.batch = options.batch
        self.losses, self.seconds = [], []

    def step(self):
        tokens = torch.randint(VOCABULARY, (self.batch, TOKENS), generator=self.data)
        dist.barrier()
        started = time.perf_counter()
        loss = torch.nn.functional.cross_entropy(self.model(tokens).flatten(0, 1), tokens.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        dist.barrier()
        self.seconds.append(time.perf_counter() - started)
        self.losses.append(loss.item())


def join():
    """The ranks of bench/cluster or `shoal run` as the default group."""
    rank, size = int(os.environ.get("SHOAL_RANK", "0")), int(os.environ.get("SHOAL_SIZE", "1"))
    # SHOAL_MASTER_PORT is used by shoal: the store takes the next one.
    address, port = os.environ.get("SHOAL_MASTER_ADDR", "127.0.0.1"), int(os.environ.get("SHOAL_MASTER_PORT", "29470")) + 1
    timeout = timedelta(seconds=120)
    store = dist.TCPStore(address, port, size, is_master=rank == 0, timeout=timeout)
    if "SHOAL_HOST_ADDRESS" in os.environ:  # Gloo needs an interface
        os.environ.setdefault("GLOO_SOCKET_IFNAME", next(name for _, name in socket.if_nameindex() if name.startswith("eth")))
    dist.init_process_group("shoal", store=store, rank=rank, world_size=size, timeout=timeout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=12, help="measured steps of each library")
    parser.add_argument("--block", type=int, default=3, help="steps of one library before the other one takes its turn")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=2, help="sequences per rank")
    options = parser.parse_args()
    torch.set_num_threads(1)
    join()
    libraries = [Library("shoal", dist.group.WORLD, options), Library("gloo", dist.new_group(backend="gloo"), options)]
    for library in libraries:
        library.step()
    while len(libraries[0].losses) <= options.steps:
        turn = min(options.block, options.steps + 1 - len(libraries[0].losses))
        for library in libraries:
            for _ in range(turn):
                library.step()
        libraries.reverse()  # alternates the order, so that no library always runs after the other

    results = {}
    for library in sorted(libraries, key=lambda c: c.name):
        mean = torch.tensor(library.losses, dtype=torch.float64)
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        quartiles = statistics.quantiles(library.seconds[1:], n=4) if options.steps > 1 else [library.seconds[1]] * 3
        results[library.name] = {"ms_per_step": round(1e3 * quartiles[1], 2), "ms_p25": round(1e3 * quartiles[0], 2),
                                    "ms_p75": round(1e3 * quartiles[2], 2), "loss_first": mean[0].item(), "loss_last": mean[-1].item()}
        results[library.name]["losses"] = mean.tolist()
    pairs = zip(results["shoal"].pop("losses"), results["gloo"].pop("losses"))
    apart = max(abs(mine - theirs) / abs(theirs) for mine, theirs in pairs)
    agree = apart <= TOLERANCE
    if dist.get_rank() == 0:
        about = {"machine": machine() | {"torch": torch.__version__}, "command": " ".join(sys.argv), "ranks": dist.get_world_size(),
                 "rate": os.environ.get("SHOAL_CLUSTER_RATE", ""), "steps": options.steps, "parameters": libraries[0].parameters,
                 "batch_per_rank": options.batch}
        verdict = {"gloo_over_shoal": round(results["gloo"]["ms_per_step"] / results["shoal"]["ms_per_step"], 3),
                   "losses_apart": apart, "losses_agree": agree}
        print(json.dumps(about | results | verdict), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
