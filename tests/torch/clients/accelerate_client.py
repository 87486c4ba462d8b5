"""Accelerate: accelerate_client.py BACKEND, under torchrun. Training, evaluation, wait_for_everyone, save_state and load_state."""
import os
import sys
import tempfile

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object

import common


def main(backend):
    dist.init_process_group(backend)  # on CPUs Accelerate would take Gloo, whatever InitProcessGroupKwargs says
    accelerator = Accelerator(cpu=True)
    model = common.network()
    samples = common.samples()
    kept = torch.utils.data.Subset(samples, range(len(samples) - 5))  # uneven: gather_for_metrics drops what was repeated
    model, optimizer, training, evaluation = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), torch.utils.data.DataLoader(samples, batch_size=common.BATCH),
        torch.utils.data.DataLoader(kept, batch_size=common.BATCH))
    with accelerator.main_process_first():
        losses = []
    losses += common.train(model, optimizer, training, accelerator.backward)
    right = []
    model.eval()
    with torch.inference_mode():
        for inputs, labels in evaluation:
            guesses, labels = accelerator.gather_for_metrics((model(inputs).argmax(1), labels))
            right += (guesses == labels).tolist()
    accelerator.wait_for_everyone()
    folder = broadcast_object_list([tempfile.mkdtemp() if accelerator.is_main_process else None])[0]
    accelerator.save_state(os.path.join(folder, "state"))
    before = common.weights(model)
    common.train(model, optimizer, training, accelerator.backward)
    accelerator.load_state(os.path.join(folder, "state"))
    rank = accelerator.process_index
    common.report(rank, backend=dist.get_backend(), losses=losses, right=right, weights=before,
                  restored=common.weights(model) == before, padded=accelerator.pad_across_processes(torch.ones(2 + rank)).tolist(),
                  summed=accelerator.reduce(torch.tensor(losses), "sum").tolist(), objects=gather_object([rank]))
    accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
