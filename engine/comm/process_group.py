"""By this back end of torch.distributed ranks of one host exchange through memory that they share.

register() names it "par4d". Whoever waits for an asynchronous collective carries it out; a thread does so only where a
future is asked for, as DDP's reducer does, which completes by itself.
"""

from collections import Counter
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from engine.comm.contact import Line
from engine.comm.exchange import Exchange
from engine.comm.memory_collectives import MemoryGroup
from engine.comm.neighbours import host
from engine.comm.shared_memory import meet

NAME = "par4d"
BETWEEN_HOSTS = "gloo between hosts"


def register() -> None:
    """Make the back end known to torch.distributed, once a process."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _group, extended_api=True, devices=["cpu"])


def carried() -> Counter[str]:
    """Count the calls of this process's groups of torch.distributed that went through memory, over gloo or over NCCL;
    those of groups whose ranks are on several hosts, which have no memory in common, BETWEEN_HOSTS.

    Of groups of gloo and NCCL themselves it is as they number their collectives, without messages between two ranks.
    A group of one rank sends nothing. All ranks have to ask for it, as each tells the others its host.
    """
    found: Counter[str] = Counter()
    groups: Any = {group: name for group, (name, _) in dist.distributed_c10d._world.pg_map.items() if group.size() > 1}
    hosts = _hosts(dist.group.WORLD) if groups else []
    for group, name in groups.items():
        over_gloo = "gloo" if len({hosts[rank] for rank in dist.get_process_group_ranks(group)}) == 1 else BETWEEN_HOSTS
        if isinstance(group, MemoryGroup):
            found.update({over_gloo if road == "gloo" else road: calls for road, calls in group.carried.items()})
        elif name in ("gloo", "nccl"):
            found[over_gloo if name == "gloo" else name] += group._get_sequence_number_for_group()
    return +found


@lru_cache(maxsize=1)
def _hosts(_: dist.ProcessGroup | None) -> list[bytes]:
    """Ask every rank of the world for its host, once, while all of them live."""
    store = dist.distributed_c10d._get_default_store()
    ranks = range(dist.get_world_size())
    store.set(f"host of {dist.get_rank()}", str(host()))
    return [store.get(f"host of {rank}") for rank in ranks]


def _group(options: Any, _: object = None) -> dist.ProcessGroup:
    """Make a group; torch.distributed calls this."""
    ranks, own, timeout = options.group_size, options.group_rank, options.timeout
    gloo: Any = dist.ProcessGroupGloo(options.store, own, ranks, timeout=timeout)
    members = list(options.global_ranks_in_group or range(ranks))
    line = Line(members[own], f"in group {options.group_id}", [rank for rank in members if rank != members[own]], NAME)

    def everyones(row: Tensor) -> Tensor:
        rows = [torch.empty_like(row) for _ in range(ranks)]
        gloo.allgather([rows], [row]).wait()
        return torch.stack(rows)

    met = meet(ranks, own, line, timeout, everyones)
    return MemoryGroup(own, ranks, gloo, Exchange(*met, own, line) if met else None)
