"""Ray Train: ray_client.py BACKEND. The script of a driver; Ray starts the two workers, which do not import shoal either."""
import json
import os
import sys
import tempfile

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def train_loop(settings):
    sys.path.insert(0, settings["folder"])
    import ray.train
    import torch
    import torch.distributed as dist
    from ray.train.torch import prepare_data_loader, prepare_model

    import common

    model = prepare_model(common.network())
    batches = prepare_data_loader(torch.utils.data.DataLoader(common.samples(), batch_size=common.BATCH))
    losses = common.train(model, torch.optim.SGD(model.parameters(), lr=0.1), batches)
    summed = torch.tensor(losses)
    dist.all_reduce(summed)
    rank = ray.train.get_context().get_world_rank()
    values = {"backend": dist.get_backend(), "losses": losses, "summed": summed.tolist(), "weights": common.weights(model)}
    with open(os.path.join(settings["results"], str(rank)), "w", encoding="ascii") as file:
        json.dump(values, file)
    ray.train.report({"rank": rank})


def main(backend):
    import common

    with tempfile.TemporaryDirectory() as folder:
        ray.init(num_cpus=4, include_dashboard=False, _node_ip_address="127.0.0.1", _temp_dir=os.path.join(folder, "ray"))
        settings = {"folder": os.path.dirname(os.path.abspath(__file__)), "results": folder}
        TorchTrainer(train_loop, train_loop_config=settings, torch_config=TorchConfig(backend=backend),
                     scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(storage_path=os.path.join(folder, "runs"))).fit()
        ray.shutdown()
        for rank in range(2):
            with open(os.path.join(folder, str(rank)), encoding="ascii") as file:
                common.report(rank, **json.load(file))


if __name__ == "__main__":
    main(*sys.argv[1:])
