"""PyTorch's libraries over this backend: FSDP2, DeviceMesh, DTensor, ZeRO, functional and object collectives, distributed checkpoints,
TORCH_DISTRIBUTED_DEBUG=DETAIL. Each is compared with the same computation in one process."""
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from ranks import check, expect, run_ranks

SEED = 11
VOCABULARY, WIDTH, TOKENS, BATCH, STEPS = 32, 24, 12, 8, 6


class Transformer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(SEED)
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        layer = dict(nhead=2, dim_feedforward=50, dropout=0.0, batch_first=True)
        self.blocks = torch.nn.ModuleList(torch.nn.TransformerEncoderLayer(WIDTH, **layer) for _ in range(2))
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def batches():
    generator = torch.Generator().manual_seed(SEED)
    return [torch.randint(VOCABULARY, (BATCH, TOKENS), generator=generator) for _ in range(STEPS)]


def train(model, share, optimizer=None):
    """The loss on this rank's share before each step: predict every token from itself."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for tokens in batches():
        loss = torch.nn.functional.cross_entropy(model(tokens[share]).flatten(0, 1), tokens[share].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def share_of(rank, size):
    return slice(rank * BATCH // size, (rank + 1) * BATCH // size)


def sharded(mesh, **options):
    model = Transformer()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def fsdp2(rank, size, backend):
    group = None if backend == "shoal" else dist.new_group(backend=backend)
    mesh = init_device_mesh("cpu", (size,)) if group is None else dist.DeviceMesh.from_group(group, "cpu")
    model = sharded(mesh)
    weight = model.head.weight
    check(isinstance(weight, DTensor) and weight.to_local().shape[0] < VOCABULARY, "parameters are sharded")
    return train(model, share_of(rank, size))


def fsdp2_scaled_and_mixed(rank, size):
    """FSDP2 with a divide factor (PREMUL_SUM) and bf16 communication."""
    model = sharded(init_device_mesh("cpu", (size,)), mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))
    model.set_gradient_divide_factor(float(size))
    return train(model, share_of(rank, size))


def hybrid(rank, size):
    """Two dimensions: sharded along one, replicated along the other."""
    model = sharded(init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard")))
    return train(model, share_of(rank, size))


def meshes(rank, size):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("row", "column"))
    for name, members in (("row", [rank % 2, rank % 2 + 2]), ("column", [rank // 2 * 2, rank // 2 * 2 + 1])):
        group = mesh.get_group(name)
        check(dist.get_process_group_ranks(group) == members, f"members along {name}")
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=group)
        check(tensor.item() == sum(members), f"sum along {name}")


def dtensors(rank, size):
    torch.manual_seed(SEED)
    left, right = torch.randn(8, 12), torch.randn(12, 16)
    mesh = init_device_mesh("cpu", (size,))
    by_rows, by_columns = distribute_tensor(left, mesh, [Shard(0)]), distribute_tensor(right, mesh, [Shard(1)])
    everywhere = distribute_tensor(right, mesh, [Replicate()])
    torch.testing.assert_close((by_rows @ everywhere).full_tensor(), left @ right)
    torch.testing.assert_close((by_rows.redistribute(mesh, [Replicate()]) @ by_columns).full_tensor(), left @ right)
    inner = distribute_tensor(left, mesh, [Shard(1)]) @ distribute_tensor(right, mesh, [Shard(0)])
    check(inner.placements == (Partial(),), "a product along the sharded dimension is a partial sum")
    torch.testing.assert_close(inner.redistribute(mesh, [Shard(0)]).full_tensor(), left @ right)  # reduce_scatter
    moved = by_rows.redistribute(mesh, [Shard(1)])  # on CPU DTensor gathers and cuts
    check(torch.equal(moved.to_local(), left.chunk(size, dim=1)[rank]), "from rows to columns")
    check(torch.equal(distribute_tensor(torch.arange(7.0), mesh, [Shard(0)]).full_tensor(), torch.arange(7.0)), "uneven shards")


def zero(rank, size):
    torch.manual_seed(SEED)
    model = DistributedDataParallel(Transformer())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-2)
    losses = train(model, share_of(rank, size), optimizer)
    optimizer.consolidate_state_dict(to=0)
    if rank == 0:
        check(len(optimizer.state_dict()["state"]) == len(list(model.parameters())), "rank 0 has the state of all ranks")
    return losses


def functional_collectives(rank, size):
    group = dist.group.WORLD
    mine = torch.full((4, 3), float(rank))
    total = functional.all_reduce(mine, "sum", group)
    check(torch.equal(total, torch.full((4, 3), size * (size - 1) / 2)), "all_reduce")
    all_ranks = torch.arange(size).float()
    gathered = functional.all_gather_tensor(mine, 0, group)
    check(torch.equal(gathered, all_ranks.repeat_interleave(4)[:, None].expand(-1, 3)), "all_gather_tensor")
    rows = [torch.arange(size * 2.0)[:, None] + r for r in range(size)]
    mine_of_sum = functional.reduce_scatter_tensor(rows[rank], "sum", 0, group)
    check(torch.equal(mine_of_sum, sum(rows)[2 * rank: 2 * rank + 2]), "reduce_scatter_tensor")
    sends = [r + 1 for r in range(size)]  # rank r gets r + 1 rows of each
    whole = torch.full((sum(sends), 2), float(rank))
    got = functional.all_to_all_single(whole, [rank + 1] * size, sends, group)
    check(torch.equal(got, all_ranks.repeat_interleave(rank + 1)[:, None].expand(-1, 2)), "all_to_all_single")
    check(torch.equal(functional.broadcast(mine, 1, group), torch.ones(4, 3)), "broadcast")
    many = functional.all_reduce_coalesced([mine, 2 * mine], "max", group)
    check([m.max().item() for m in many] == [size - 1, 2 * (size - 1)], "all_reduce_coalesced")
    compiled = torch.compile(lambda x: functional.all_reduce(x, "sum", group) + 1, backend="eager", fullgraph=True)
    check(torch.equal(compiled(mine), total + 1), "all_reduce in a compiled function")


def objects(rank, size):
    everything = [None] * size if rank == 1 else None
    dist.gather_object({"rank": rank, "padding": "x" * (100 * rank)}, everything, dst=1)
    if rank == 1:
        check([entry["rank"] for entry in everything] == list(range(size)), "gather_object")
    mine = [None]
    dist.scatter_object_list(mine, [("for", r) for r in range(size)] if rank == 0 else None, src=0)
    check(mine == [("for", rank)], "scatter_object_list")
    if rank == 0:
        dist.send_object_list(["a", {"b": 3}], dst=1)
    elif rank == 1:
        received = [None, None]
        check(dist.recv_object_list(received, src=0) == 0 and received == ["a", {"b": 3}], "recv_object_list")


def checkpoints(rank, size, folder):
    mesh = init_device_mesh("cpu", (size,))
    model = sharded(mesh)
    losses = train(model, share_of(rank, size))
    checkpoint.save({"model": get_model_state_dict(model)}, checkpoint_id=folder)
    other = sharded(mesh)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    state = {"model": get_model_state_dict(other)}
    checkpoint.load(state, checkpoint_id=folder)
    set_model_state_dict(other, state["model"])
    for name, parameter in other.state_dict().items():
        check(torch.equal(parameter.to_local(), model.state_dict()[name].to_local()), f"{name} came back")
    return losses


def details(rank, size):
    check(dist.get_debug_level() == dist.DebugLevel.DETAIL, "debug level")
    tensor = torch.ones(5)
    dist.all_reduce(tensor)
    check(torch.equal(tensor, torch.full((5,), float(size))), "all_reduce through the wrapper")
    output = torch.zeros(size)
    dist.all_gather_into_tensor(output, torch.tensor([float(rank)]))
    check(torch.equal(output, torch.arange(float(size))), "all_gather through the wrapper")
    share = torch.zeros(2)
    dist.reduce_scatter_tensor(share, torch.ones(2 * size))
    check(torch.equal(share, torch.full((2,), float(size))), "reduce_scatter through the wrapper")
    blocks = torch.zeros(size)
    dist.all_to_all_single(blocks, torch.arange(float(size)) + 10 * rank)
    check(torch.equal(blocks, 10.0 * torch.arange(size) + rank), "all_to_all through the wrapper")
    parts = [torch.zeros(1) for _ in range(size)] if rank == 1 else None
    dist.gather(torch.tensor([float(rank)]), parts, dst=1)
    check(rank != 1 or torch.cat(parts).tolist() == list(range(size)), "gather through the wrapper")
    mine = torch.zeros(1)
    dist.scatter(mine, [torch.tensor([float(r)]) for r in range(size)] if rank == 0 else None, src=0)
    check(mine.item() == rank, "scatter through the wrapper")
    work = dist.irecv(mine, (rank - 1) % size)
    dist.send(torch.tensor([100.0 + rank]), (rank + 1) % size)
    work.wait()
    check(mine.item() == 100 + (rank - 1) % size, "a message through the wrapper")
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    model(torch.full((2, 3), float(rank))).sum().backward()
    check(torch.equal(model.module.weight.grad, torch.full((1, 3), float(size - 1))), "DDP through the wrapper")
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.barrier(group=pair)
        expect(RuntimeError, "mismatch", lambda: dist.all_reduce(torch.ones(3 + rank), group=pair))

    def call_and_barrier():
        dist.all_reduce(torch.ones(3)) if rank == 0 else dist.broadcast(torch.ones(3), src=1)
        dist.barrier()  # the root of a broadcast does not wait for the others

    expect(RuntimeError, "mismatch", call_and_barrier)


def check_losses(per_rank, tolerance=1e-5):
    """The mean of the ranks' losses is the loss of one process on the whole batch."""
    alone = train(Transformer(), slice(None))
    together = torch.tensor(per_rank).mean(0).tolist()
    for step, (found, wanted) in enumerate(zip(together, alone)):
        assert found == pytest.approx(wanted, abs=tolerance * max(1, wanted)), f"step {step}"
    assert alone[-1] < alone[0]


@pytest.mark.long
def test_fsdp2_matches_one_process_and_gloo():
    losses = run_ranks(4, fsdp2, "shoal")
    check_losses(losses)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(run_ranks(4, fsdp2, "gloo")), rtol=1e-5, atol=1e-5)


def test_fsdp2_with_a_divide_factor_in_bfloat16():
    check_losses(run_ranks(2, fsdp2_scaled_and_mixed), tolerance=2e-2)


def test_fsdp2_in_two_dimensions():
    check_losses(run_ranks(4, hybrid))


def test_device_mesh():
    run_ranks(4, meshes)


@pytest.mark.parametrize("size", (2, 4))
def test_dtensor(size):
    run_ranks(size, dtensors)


def test_zero_redundancy_optimizer():
    check_losses(run_ranks(2, zero))


def test_functional_collectives():
    run_ranks(3, functional_collectives)


def test_object_collectives():
    run_ranks(3, objects)


def test_distributed_checkpoint(folder):
    check_losses(run_ranks(2, checkpoints, folder))


def test_debug_detail(monkeypatch):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    dist.set_debug_level_from_env()
    try:
        run_ranks(3, details)
    finally:
        monkeypatch.undo()
        dist.set_debug_level_from_env()
