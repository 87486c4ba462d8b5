"""DeepSpeed: deepspeed_client.py BACKEND STAGE, under torchrun. ZeRO of stage 0 to 3 on CPUs."""
import os
import sys
import tempfile

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed
import torch
import torch.distributed as dist
import torch.nn.functional as F

import common


def main(backend, stage):
    deepspeed.init_distributed(dist_backend=backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    model = common.network()
    settings = {"train_micro_batch_size_per_gpu": common.BATCH, "gradient_clipping": 1.0, "zero_optimization": {"stage": int(stage)},
                "zero_force_ds_cpu_optimizer": False, "zero_allow_untested_optimizer": True}
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=0.01), config=settings)
    losses, norms = [], []
    for _ in range(3):
        for inputs, labels in common.share(rank, size):
            loss = F.cross_entropy(engine(inputs), labels)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
            norms.append(float(engine.get_global_grad_norm() or 0))
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    engine.save_checkpoint(folder[0], tag="last")
    engine.load_checkpoint(folder[0], tag="last")
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == "3"):
        common.report(rank, backend=dist.get_backend(), losses=losses, norms=norms, weights=common.weights(model))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
