"""Lightning: lightning_client.py BACKEND fit|fabric|model_parallel, under torchrun."""
import sys
import tempfile

import lightning
import torch
import torch.distributed as dist
import torch.nn.functional as F
import torchmetrics
from lightning.fabric.strategies import DDPStrategy as FabricDDP
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import common


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = common.network()
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(common.CLASSES)
        self.confusion = torchmetrics.classification.MulticlassConfusionMatrix(common.CLASSES)

    def training_step(self, batch):
        loss = F.cross_entropy(self.network(batch[0]), batch[1])
        self.log("train", loss, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch):
        outputs = self.network(batch[0])
        self.log("loss", F.cross_entropy(outputs, batch[1]), sync_dist=True)
        self.accuracy.update(outputs, batch[1])
        self.confusion.update(outputs, batch[1])

    def on_validation_epoch_end(self):
        self.log("accuracy", self.accuracy.compute())
        self.confused = self.confusion.compute().tolist()
        self.accuracy.reset()
        self.confusion.reset()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Parallel(Module):
    """Two dimensions: tensor-parallel layers, sharded among the data-parallel ranks."""

    cut = False

    def configure_model(self):
        if self.cut:  # validate() after fit() calls this again
            return
        self.cut = True
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(self.network, self.device_mesh["tensor_parallel"], plan)
        fully_shard(self.network, mesh=self.device_mesh["data_parallel"])


def loader():
    return torch.utils.data.DataLoader(common.samples(), batch_size=common.BATCH)


def fit(module, strategy, devices):
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(accelerator="cpu", devices=devices, strategy=strategy, max_epochs=2, logger=False, default_root_dir=folder,
                                    enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
        trainer.fit(module, loader(), loader())
        measured = trainer.validate(module, loader(), verbose=False)
    full = [getattr(parameter, "full_tensor", lambda kept=parameter: kept)() for parameter in module.parameters()]
    common.report(trainer.global_rank, backend=dist.get_backend(), metrics=measured, confused=module.confused,
                  weights=[value.detach().double().sum().item() for value in full])


def fabric(backend):
    runner = lightning.Fabric(accelerator="cpu", devices=2, strategy=FabricDDP(process_group_backend=backend))
    runner.launch()
    model = common.network()
    model, optimizer = runner.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    losses = common.train(model, optimizer, runner.setup_dataloaders(loader()), runner.backward)
    gathered = runner.all_gather(torch.tensor(losses)).tolist()
    mean = runner.all_reduce(torch.tensor(losses), reduce_op="mean").tolist()
    runner.barrier()
    common.report(runner.global_rank, backend=dist.get_backend(), gathered=gathered, mean=mean, first=runner.broadcast(runner.global_rank),
                  weights=common.weights(model))


def main(backend, part):
    if part == "fit":
        fit(Module(), DDPStrategy(process_group_backend=backend), 2)
    elif part == "fabric":
        fabric(backend)
    else:
        fit(Parallel(), ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=2, process_group_backend=backend), 4)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
