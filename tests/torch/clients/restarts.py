"""Elastic restarts: restarts.py BACKEND FOLDER ROUNDS, under torchrun with --max-restarts. Rank 1 fails in every round but the last.

A round is one start of the ranks by torchrun. The failures alternate between an exception and SIGKILL.
"""
import os
import signal
import sys

import torch
import torch.distributed as dist

import common


def main(backend, folder, rounds):
    dist.init_process_group(backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    model = torch.nn.parallel.DistributedDataParallel(common.network())
    losses = common.train(model, torch.optim.SGD(model.parameters(), lr=0.1), common.share(rank, size))
    done = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    with open(os.path.join(folder, f"{done}.{rank}"), "w", encoding="ascii") as file:
        file.write(str(losses))
    if done < int(rounds) and rank == 1:
        if done % 2:
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("a failure on purpose")
    if done < int(rounds):  # the wait of a rank that does not know of the failure yet
        dist.barrier()
    common.report(rank, backend=dist.get_backend(), rounds=done, losses=losses, weights=common.weights(model))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
