"""Ranks tell each other where they are bound, before they make process groups: rank 0 judges it, and keeps it.

Each rank writes some hundred bytes to the store where all meet, and waits for rank 0's word once.
"""

import logging
import os
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from itertools import count, groupby

import torch
from torch import distributed as dist

from engine.comm.binding_faults import asked_of, judge, node_of, ranks_by
from engine.comm.launch import Launch
from engine.comm.told import told_by_first
from engine.measure.binding import Binding, Gpu, read
from engine.result.binding import Bindings, NodeBinding, RankBinding

log = logging.getLogger(__name__)

AT_A_TIME = 1024
"""Rank 0 reads so many ranks' bindings at a time."""
MOST_NODES = 64
"""A result has so many nodes that are bound differently."""


def exchange(launch: Launch, device: torch.device, store: dist.Store | None, limit: timedelta) -> Bindings | None:
    """Judge how all ranks are bound; return it on rank 0. Collective.

    store: where they have met; None for one rank. Raises UsageError on all ranks where two of them have one GPU.
    """
    own = read(torch.get_num_threads(), gpu_of(device), launch.launcher, os.environ)
    if store is None or launch.world_size == 1:
        return judged([own])
    place, found = dist.PrefixStore("binding", store), list[Bindings]()
    place.set(f"of rank {launch.rank}", own.model_dump_json(exclude_defaults=True))

    def say() -> str:
        found.append(judged([Binding.model_validate_json(text) for text in _all(place, launch.world_size)]))
        return ""

    told_by_first(launch, place, say, "while ranks told each other where they are bound", limit)
    return found[0] if found else None


def _all(store: dist.Store, ranks: int) -> list[bytes]:
    keys = [f"of rank {rank}" for rank in range(ranks)]
    parts = (keys[first : first + AT_A_TIME] for first in range(0, ranks, AT_A_TIME))
    return [text for part in parts for text in store.multi_get(part)]


def gpu_of(device: torch.device) -> Gpu | None:
    """Say which GPU a device is, as far as this torch tells; None on processors."""
    if device.type != "cuda":
        return None
    known, slot = torch.cuda.get_device_properties(device), device.index or 0
    domain, bus, place = (getattr(known, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
    address = None if None in (domain, bus, place) else f"{domain:04x}:{bus:02x}:{place:02x}.0"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    uuid = getattr(known, "uuid", None)
    if slot < len(visible) and visible[slot].startswith("MIG-"):
        uuid = visible[slot]
    return Gpu(address, None if uuid is None else str(uuid), slot)


def judged(found: Sequence[Binding]) -> Bindings:
    """Judge the bindings of all ranks, and put nodes together whose ranks are bound alike. Raises UsageError as judge
    does.
    """
    faults = judge(found)
    alike: dict[tuple[RankBinding, ...], list[list[int]]] = defaultdict(list)
    for ranks in ranks_by(found, node_of).values():
        alike[tuple(_recorded(found[rank], len(ranks)) for rank in ranks)].append(ranks)
    nodes = [
        NodeBinding(
            host=found[first[0]].host,
            nodes=1 + len(others),
            first_rank=first[0],
            gpus=tuple(found[rank].uuid for rank in first) if found[first[0]].uuid else (),
            ranks=bindings,
        )
        for bindings, (first, *others) in alike.items()
    ]
    left_out = sum(node.nodes for node in nodes[MOST_NODES:])
    return Bindings(nodes=tuple(nodes[:MOST_NODES]), nodes_left_out=left_out, faults=faults)


def _recorded(one: Binding, ranks: int) -> RankBinding:
    return RankBinding(
        cores=listed(int(one.cores, 16)),
        numa_nodes=one.nodes,
        gpu=one.gpu,
        gpu_numa_node=one.gpu_node,
        network_card=one.card,
        omp_num_threads=one.omp,
        threads=one.threads,
        cores_asked=asked_of(one, ranks),
    )


def listed(mask: int) -> str:
    """Write the cores of a mask as the kernel does.

    >>> listed(0b1_0000_0111)
    '0-2,8'
    """
    numbers = [number for number in range(mask.bit_length()) if mask >> number & 1]
    place = count()
    runs = [list(run) for _, run in groupby(numbers, key=lambda number: number - next(place))]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def warn(bindings: Bindings | None) -> None:
    """Say what is wrong with them, a line each."""
    for fault in bindings.faults if bindings else ():
        log.warning("%s", fault.said)
