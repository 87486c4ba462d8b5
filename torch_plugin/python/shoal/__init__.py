"""shoal: collectives for gradients that cross a slow network, as a backend of torch.distributed.

    torch.distributed.init_process_group("shoal")

An installed copy needs no `import shoal`: shoal_autoload registers the backend when torch is imported.

Serves tensors on the CPU and on CUDA devices. A device may keep another backend beside it:
init_process_group("cpu:shoal,cuda:nccl").
"""

import atexit
from datetime import timedelta

import torch  # its libraries must be loaded before _C
import torch.distributed as _dist

from shoal_autoload import DEVICES as _DEVICES, register, require_fitting_torch as _require_fitting_torch
from shoal_autoload._build import VERSION as __version__

_require_fitting_torch()
from ._C import Options, ProcessGroupShoal, create as _create, dump_flight_recorder, end_calls_at_exit as _end_calls_at_exit

__all__ = ["Options", "ProcessGroupShoal", "dump_flight_recorder", "monitored_barrier", "process_group", "register"]


def _links_to_share(options):
    """The world's group, if it is an open group of shoal: new groups share its links instead of making their own."""
    if not _dist.is_initialized() or (options is not None and (options.algorithm or options.transports)):
        return None
    for device in _DEVICES:
        try:
            world = _dist.group.WORLD._get_backend(torch.device(device))
        except RuntimeError:  # the world has no backend for this device
            continue
        world = getattr(world, "wrapped_pg", world)  # TORCH_DISTRIBUTED_DEBUG=DETAIL
        if isinstance(world, ProcessGroupShoal):
            return world if world.is_open() else None
    return None


def _create_backend(backend_options, group_options):
    """Called by torch.distributed for every group whose backend is "shoal"."""
    if group_options is not None and not isinstance(group_options, Options):
        raise TypeError(f"shoal: pg_options must be shoal.Options, not {type(group_options).__name__}")
    return _create(
        backend_options.store,
        backend_options.group_rank,
        backend_options.group_size,
        backend_options.timeout,
        backend_options.group_id,
        # Empty for the world, which contains every rank.
        backend_options.global_ranks_in_group or list(range(backend_options.group_size)),
        group_options,
        _links_to_share(group_options),
    )


def process_group(store, rank, size, timeout=_dist.default_pg_timeout, options=None):
    """A ProcessGroup of the ranks that call this with one store, without init_process_group: for torchft and similar libraries.

    `timeout` is a timedelta; the store must not have served another group: for example a PrefixStore with a new prefix.
    """
    group = _dist.ProcessGroup(store, rank, size)
    kind = _dist.ProcessGroup.BackendType.CUSTOM
    group._set_default_backend(kind)
    backend = _create(store, rank, size, timeout, "", list(range(size)), options)
    for device in _DEVICES:
        group._register_backend(torch.device(device), kind, backend)
    return group


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """As torch.distributed.monitored_barrier, which requires a backend named gloo: names the ranks that did not reach the barrier.

    `timeout` is a timedelta; None: the group's own.
    """
    if _dist.get_rank(group) < 0:
        return
    limit = {} if timeout is None else {"timeout": timeout}
    (group or _dist.group.WORLD).monitored_barrier(wait_all_ranks=wait_all_ranks, **limit)


# Callbacks in Python must have run when the interpreter ends. An aborted call ends at once, so the limit applies only to
# callbacks that do not return.
atexit.register(_end_calls_at_exit, timedelta(seconds=10))
register()
