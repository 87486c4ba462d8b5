"""torchrec: torchrec_client.py BACKEND, under torchrun. Embedding tables whole on one rank, cut by columns, and on all ranks."""
import sys

import torch
import torch.distributed as dist
import torchrec
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import ShardingEnv, ShardingType

import common

# On CPUs torchrec cuts no table by rows.
TABLES = {"whole": ShardingType.TABLE_WISE, "cut": ShardingType.COLUMN_WISE, "everywhere": ShardingType.DATA_PARALLEL}
ROWS = 40


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        tables = [torchrec.EmbeddingBagConfig(name=name, embedding_dim=8, num_embeddings=ROWS, feature_names=[name]) for name in TABLES]
        self.tables = torchrec.EmbeddingBagCollection(tables=tables, device=torch.device("cpu"))
        self.head = torch.nn.Linear(8 * len(TABLES), 1)

    def forward(self, features):
        return self.head(self.tables(features).values())


def features(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    lengths = torch.randint(0, 4, (len(TABLES) * common.BATCH,), generator=generator)
    values = torch.randint(ROWS, (int(lengths.sum()),), generator=generator)
    return torchrec.KeyedJaggedTensor(keys=list(TABLES), values=values, lengths=lengths)


def main(backend):
    dist.init_process_group(backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    sharders = [EmbeddingBagCollectionSharder()]
    constraints = {name: ParameterConstraints(sharding_types=[kind.value], min_partition=4 if name == "cut" else None)
                   for name, kind in TABLES.items()}
    planner = EmbeddingShardingPlanner(topology=Topology(world_size=size, compute_device="cpu"), constraints=constraints)
    model = Model()
    plan = planner.collective_plan(model, sharders, dist.group.WORLD)
    model = DistributedModelParallel(model, env=ShardingEnv.from_process_group(dist.group.WORLD), device=torch.device("cpu"), plan=plan,
                                     sharders=sharders)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(6):
        optimizer.zero_grad()
        loss = (model(features(rank, step)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    sums = {name: 0.0 for name in TABLES}
    for key, value in model.state_dict().items():
        for shard in getattr(value, "local_shards", list)():
            sums[key.split(".")[-2]] += shard.tensor.double().sum().item()
    all_sums = [None] * size
    dist.all_gather_object(all_sums, sums)
    common.report(rank, backend=dist.get_backend(), losses=losses, tables=all_sums, head=common.weights(model.module.head),
                  plans=sorted(parameter.sharding_type for parameter in next(iter(plan.plan.values())).values()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
