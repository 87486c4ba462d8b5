"""shoal: collectives for gradients that cross a slow network, as a backend of torch.distributed.

    import shoal
    torch.distributed.init_process_group("shoal")

Serves CPU tensors: all_reduce, broadcast, all_gather, all_gather_into_tensor, barrier, and so DistributedDataParallel. Beside
it other devices keep their own backend: init_process_group("cpu:shoal,cuda:nccl").
"""

import torch  # noqa: F401  (its libraries must be loaded before _C)
import torch.distributed as _dist

from ._C import Options, ProcessGroupShoal, create as _create

__all__ = ["Options", "ProcessGroupShoal"]


def _create_backend(backend_options, group_options):
    """Called by torch.distributed for every group whose backend is "shoal"."""
    if group_options is not None and not isinstance(group_options, Options):
        raise TypeError(f"shoal: pg_options must be shoal.Options, not {type(group_options).__name__}")
    return _create(
        backend_options.store,
        backend_options.group_rank,
        backend_options.group_size,
        backend_options.timeout,
        group_options,
    )


if _dist.is_available():
    _dist.Backend.register_backend("shoal", _create_backend, extended_api=True, devices=["cpu"])
