"""Binding of ranks to cores, exchanged over the store where they meet and judged by rank 0.

A fault is what makes a wrong number, though nothing fails.
"""

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import reduce
from itertools import count, groupby
from operator import or_
from typing import NamedTuple

import torch
from torch import distributed as dist

from engine.comm.agreement import broadcast_text
from engine.comm.launch import Launch
from engine.errors import UsageError
from engine.measure.binding import Binding, Gpu, read
from engine.result.schema.machine import BindingFault, Bindings, FaultKind, NodeBinding, RankBinding

log = logging.getLogger(__name__)

AT_A_TIME = 1024
"""Ranks whose bindings rank 0 reads at once."""
MOST_NODES = 64
"""Nodes with different bindings in a result."""


NAMED = 4
OWN_CORES = (
    "give each rank cores of its own (srun --cpu-bind=cores, mpirun --bind-to core), or start fewer ranks a node"
)
NEAR_CORES = "bind each rank to cores near its GPU (srun --gpu-bind=closest, or a map of cores)"
ALL_ASKED = "have the launcher give them all (srun takes no --cpus-per-task from sbatch: export SRUN_CPUS_PER_TASK)"
NO_MORE_THREADS = "set OMP_NUM_THREADS to the cores of a rank, or have the launcher give it more"
OWN_GPU = "start one rank a GPU, each with its own (LOCAL_RANK, srun --gpus-per-task=1, CUDA_VISIBLE_DEVICES)"
Masks = Sequence[int]


def exchange(launch: Launch, device: torch.device, store: dist.Store | None, limit: timedelta) -> Bindings | None:
    """Judge how all ranks are bound; return it on rank 0. Collective.

    store: where they have met; None for one rank. Raises UsageError on all ranks where two of them have one GPU.
    """
    own = read(torch.get_num_threads(), gpu_of(device), launch.launcher, os.environ)
    if store is None or launch.world_size == 1:
        return summarise([own])
    place, found = dist.PrefixStore("binding", store), list[Bindings]()
    place.set(f"of rank {launch.rank}", own.model_dump_json(exclude_defaults=True))

    def say() -> str:
        found.append(summarise([Binding.model_validate_json(text) for text in _all(place, launch.world_size)]))
        return ""

    broadcast_text(launch, place, say, "while ranks told each other where they are bound", limit)
    return found[0] if found else None


def _all(store: dist.Store, ranks: int) -> list[bytes]:
    keys = [f"of rank {rank}" for rank in range(ranks)]
    parts = (keys[first : first + AT_A_TIME] for first in range(0, ranks, AT_A_TIME))
    return [text for part in parts for text in store.multi_get(part)]


def gpu_of(device: torch.device) -> Gpu | None:
    """Identify a device, as far as this torch can; None on processors."""
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


def summarise(found: Sequence[Binding]) -> Bindings:
    """Judge the bindings of all ranks, and group nodes with equal ones. Raises UsageError as judge does."""
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
        cores=format_cores(int(one.cores, 16)),
        numa_nodes=one.nodes,
        gpu=one.gpu,
        gpu_numa_node=one.gpu_node,
        network_card=one.card,
        omp_num_threads=one.omp,
        threads=one.threads,
        cores_asked=share_asked(one, ranks),
    )


def format_cores(mask: int) -> str:
    """Write the cores of a mask as the kernel does.

    >>> format_cores(0b1_0000_0111)
    '0-2,8'
    """
    numbers = [number for number in range(mask.bit_length()) if mask >> number & 1]
    place = count()
    runs = [list(run) for _, run in groupby(numbers, key=lambda number: number - next(place))]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def warn(bindings: Bindings | None) -> None:
    for fault in bindings.faults if bindings else ():
        log.warning("%s", fault.said)


def judge(found: Sequence[Binding]) -> tuple[BindingFault, ...]:
    """Find the faults of these bindings, of all ranks in their order: each kind once, with the number of ranks.

    Raises UsageError where two ranks have one GPU.
    """
    _refuse_shared_gpu(found)
    on_node = ranks_by(found, node_of)
    asked = [share_asked(one, len(on_node[node_of(one)])) for one in found]
    far = [r for r, one in enumerate(found) if one.gpu_node is not None and one.nodes and one.gpu_node not in one.nodes]
    few = [r for r, one in enumerate(found) if (asked[r] or 0) > _room(one)]
    less = [r for r, one in enumerate(found) if _threads(one) > _room(one)]
    crowds = _sharing(found)
    kinds: dict[FaultKind, tuple[Iterable[int], Callable[[int], str]]] = {
        "cores shared": ({r for one in crowds for r in one.ranks}, lambda r: _describe_crowd(crowds, r)),
        "cores far from the GPU": (far, lambda r: _describe_distance(found[r])),
        "fewer cores than asked": (
            few,
            lambda r: f"has {_room(found[r]):g} of the {asked[r]} cores that the job asked for it: {ALL_ASKED}",
        ),
        "fewer cores than threads": (
            less,
            lambda r: f"has {_threads(found[r])} threads, and for them {_cores(_room(found[r]))}: {NO_MORE_THREADS}",
        ),
    }
    return tuple(_fault(kind, found, sorted(ranks), words) for kind, (ranks, words) in kinds.items() if ranks)


def _fault(
    kind: FaultKind, found: Sequence[Binding], ranks: Sequence[int], words: Callable[[int], str]
) -> BindingFault:
    """Make the fault of these ranks. words: what the first of them has, and what to do."""
    first, host = ranks[0], found[ranks[0]].host
    count = "this rank alone" if len(ranks) == 1 else f"{len(ranks)} of {len(found)} ranks"
    said = f"Binding: {kind} ({count}). Rank {first} on {host} {words(first)}."
    return BindingFault(kind=kind, first_rank=first, host=host, ranks=len(ranks), said=said)


def _refuse_shared_gpu(found: Sequence[Binding]) -> None:
    for ranks in ranks_by(found, lambda one: (one.machine, one.uuid, one.gpu)).values():
        first = found[ranks[0]]
        # Parts of one GPU may be devices of their own without a UUID of their own.
        slots = {found[rank].slot for rank in ranks}
        parts = len(slots) == len(ranks) and len({slot.partition("/")[2] for slot in slots}) == 1
        if len(ranks) > 1 and (first.uuid or first.gpu) and not parts:
            more = f" and {len(ranks) - NAMED} more" if len(ranks) > NAMED else ""
            names = ", ".join(map(str, ranks[:NAMED]))
            raise UsageError(f"Ranks {names}{more} on {first.host} have one GPU, {first.gpu or first.uuid}: {OWN_GPU}.")


def node_of(one: Binding) -> tuple[str, str]:
    """Return what tells nodes apart, some of which have the same name."""
    return one.host, one.machine


def ranks_by(found: Sequence[Binding], key: Callable[[Binding], object]) -> dict[object, list[int]]:
    ranks: dict[object, list[int]] = defaultdict(list)
    for rank, one in enumerate(found):
        ranks[key(one)].append(rank)
    return ranks


def _room(one: Binding) -> float:
    """Count the cores of a rank, or of its control group's limit if that is less."""
    cores = int(one.cores, 16).bit_count()
    return cores if one.limit is None else min(cores, one.limit)


def _threads(one: Binding) -> int:
    """Count the threads that OpenMP was told to make; those of torch may be fewer, as MKL makes none without a core."""
    asked = (one.omp or "").partition(",")[0].strip().removeprefix("+")
    return max(one.threads, int(asked) if asked.isdecimal() else 0)


def share_asked(one: Binding, ranks: int) -> int | None:
    """Return a rank's part of the cores that the job asked for. ranks: on its node, which may be several for a task."""
    if one.asked is None or one.tasks is None:
        return one.asked
    return max(1, min(one.asked, one.asked * one.tasks // ranks))


class _Crowd(NamedTuple):
    ranks: tuple[int, ...]
    threads: int
    cores: float


def _sharing(found: Sequence[Binding]) -> list[_Crowd]:
    """Find all ranks that share cores. Machines that are alike are looked at once."""
    known: dict[object, list[_Crowd]] = {}
    crowds: list[_Crowd] = []
    for ranks in ranks_by(found, lambda one: one.machine).values():
        traits = [(found[r].cores, found[r].main, found[r].threads, found[r].limit) for r in ranks]
        groups = tuple(map(tuple, ranks_by([found[r] for r in ranks], lambda one: one.group).values()))
        key = (tuple(traits), groups)
        if key not in known:
            known[key] = _crowds([found[r] for r in ranks], groups)
        crowds += [one._replace(ranks=tuple(ranks[place] for place in one.ranks)) for one in known[key]]
    return crowds


def _crowds(found: Sequence[Binding], groups: Iterable[Sequence[int]]) -> list[_Crowd]:
    """Find those of one machine. groups: ranks in the same control group."""
    ways = [([int(one.cores, 16) for one in found], [one.threads for one in found])]
    if any(one.main != one.cores for one in found):  # OpenMP has bound main threads, by the same rule in each rank
        ways.append(([int(one.main, 16) for one in found], [1] * len(found)))
    crowds: list[_Crowd] = []
    for masks, threads in ways:
        for group in find_crowds(masks, threads):
            cores = reduce(or_, (masks[r] for r in group)).bit_count()
            crowds.append(_Crowd(tuple(sorted(group)), sum(threads[r] for r in group), cores))
    for ranks in groups:
        limit, threads = found[ranks[0]].limit, [found[r].threads for r in ranks]
        if len(ranks) > 1 and limit is not None and sum(threads) > limit:
            crowds.append(_Crowd(tuple(ranks), sum(threads), limit))
    return crowds


def _describe_crowd(crowds: Sequence[_Crowd], rank: int) -> str:
    one = next(one for one in crowds if rank in one.ranks)
    more = len(one.ranks) - 1
    return f"and {more} more of its machine have {one.threads} threads on {_cores(one.cores)}: {OWN_CORES}"


def _cores(number: float) -> str:
    return f"{number:g} {'core' if number == 1 else 'cores'}"


def _describe_distance(one: Binding) -> str:
    nodes = ", ".join(map(str, one.nodes))
    return f"has cores of NUMA node {nodes}, but its GPU {one.gpu} is at node {one.gpu_node}: {NEAR_CORES}"


def find_crowds(masks: Masks, threads: Sequence[int]) -> list[frozenset[int]]:
    """Find the groups of ranks whose cores are fewer than their threads. masks, threads: of each rank; a rank counts
    with as many threads as it has cores at most.

    Ranks whose masks overlap are fine as long as there is room: only what is too few by itself is a group.
    """
    found: list[frozenset[int]] = []
    here = list(range(len(masks)))
    while group := _too_many([masks[rank] for rank in here], [threads[rank] for rank in here]):
        found.append(frozenset(here[place] for place in group))
        here = [rank for rank in here if rank not in found[-1]]
    return found


def _too_many(masks: Masks, threads: Sequence[int]) -> set[int]:
    """Give each thread a core, by augmenting paths; return the ranks that are too many for theirs, none if all fit."""
    owned, free = [0] * len(masks), 0
    for mask in masks:
        free |= mask
    for rank, mask in enumerate(masks):
        for _ in range(min(threads[rank], mask.bit_count())):
            came: dict[int, tuple[int, int]] = {rank: (rank, 0)}
            """From which rank each was reached, and by which of its cores."""
            queue = [rank]
            for at in queue:
                if core := masks[at] & free & -(masks[at] & free):
                    free ^= core
                    _pass_on(owned, came, at, core)
                    break
                for other in range(len(masks)):
                    if other not in came and (shared := masks[at] & owned[other]):
                        came[other] = (at, shared & -shared)
                        queue.append(other)
            else:
                return set(came)
    return set()


def _pass_on(owned: list[int], came: dict[int, tuple[int, int]], at: int, core: int) -> None:
    """Give a core to a rank, which passes one of its own on to the rank from which it was reached, and so on."""
    while True:
        owned[at] |= core
        before, core = came[at]
        if not core:
            return
        owned[at] ^= core
        at = before
