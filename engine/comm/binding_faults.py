"""Judge how ranks are bound: what makes a wrong number, though nothing fails."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple

from engine.comm.crowding import crowded
from engine.errors import UsageError
from engine.measure.binding import Binding
from engine.result.binding import BindingFault, FaultKind

NAMED = 4
OWN_CORES = (
    "give each rank cores of its own (srun --cpu-bind=cores, mpirun --bind-to core), or start fewer ranks a node"
)
NEAR_CORES = "bind each rank to cores near its GPU (srun --gpu-bind=closest, or a map of cores)"
ALL_ASKED = "have the launcher give them all (srun takes no --cpus-per-task from sbatch: export SRUN_CPUS_PER_TASK)"
NO_MORE_THREADS = "set OMP_NUM_THREADS to the cores of a rank, or have the launcher give it more"
OWN_GPU = "start one rank a GPU, each with its own (LOCAL_RANK, srun --gpus-per-task=1, CUDA_VISIBLE_DEVICES)"


def judge(found: Sequence[Binding]) -> tuple[BindingFault, ...]:
    """Say what is wrong with these bindings, of all ranks in their order: each kind once, with how many ranks.

    Raises UsageError where two ranks have one GPU.
    """
    _refuse_shared_gpu(found)
    on_node = ranks_by(found, node_of)
    asked = [asked_of(one, len(on_node[node_of(one)])) for one in found]
    far = [r for r, one in enumerate(found) if one.gpu_node is not None and one.nodes and one.gpu_node not in one.nodes]
    few = [r for r, one in enumerate(found) if (asked[r] or 0) > _room(one)]
    less = [r for r, one in enumerate(found) if _threads(one) > _room(one)]
    crowds = _sharing(found)
    made = [
        _fault("cores shared", found, {r for one in crowds for r in one.ranks}, lambda r: _crowd(crowds, r)),
        _fault("cores far from the GPU", found, far, lambda r: _distance(found[r])),
        _fault(
            "fewer cores than asked", found, few,
            lambda r: f"has {_room(found[r]):g} of the {asked[r]} cores that the job asked for it: {ALL_ASKED}",
        ),
        _fault(
            "fewer cores than threads", found, less,
            lambda r: f"has {_threads(found[r])} threads, and for them {_cores(_room(found[r]))}: {NO_MORE_THREADS}",
        ),
    ]  # fmt: skip
    return tuple(filter(None, made))


def _fault(
    kind: FaultKind, found: Sequence[Binding], ranks: Iterable[int], words: Callable[[int], str]
) -> BindingFault | None:
    """Make the fault of these ranks, if there are any. words: what the first of them has, and what to do."""
    its = sorted(ranks)
    if not its:
        return None
    first, host = its[0], found[its[0]].host
    count = "this rank alone" if len(its) == 1 else f"{len(its)} of {len(found)} ranks"
    said = f"Binding: {kind} ({count}). Rank {first} on {host} {words(first)}."
    return BindingFault(kind=kind, first_rank=first, host=host, ranks=len(its), said=said)


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
    """Tell nodes apart, some of which call themselves alike."""
    return one.host, one.machine


def ranks_by(found: Sequence[Binding], key: Callable[[Binding], object]) -> dict[object, list[int]]:
    """List the ranks that agree in something."""
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
    told = (one.omp or "").partition(",")[0].strip().removeprefix("+")
    return max(one.threads, int(told) if told.isdecimal() else 0)


def asked_of(one: Binding, ranks: int) -> int | None:
    """Give a rank's part of the cores that the job asked for. ranks: on its node, which may be several for a task."""
    if one.asked is None or one.tasks is None:
        return one.asked
    return max(1, min(one.asked, one.asked * one.tasks // ranks))


class _Crowd(NamedTuple):
    """Ranks that share cores."""

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
        for group in crowded(masks, threads):
            cores = reduce(or_, (masks[r] for r in group)).bit_count()
            crowds.append(_Crowd(tuple(sorted(group)), sum(threads[r] for r in group), cores))
    for ranks in groups:
        limit, threads = found[ranks[0]].limit, [found[r].threads for r in ranks]
        if len(ranks) > 1 and limit is not None and sum(threads) > limit:
            crowds.append(_Crowd(tuple(ranks), sum(threads), limit))
    return crowds


def _crowd(crowds: Sequence[_Crowd], rank: int) -> str:
    one = next(one for one in crowds if rank in one.ranks)
    more = len(one.ranks) - 1
    return f"and {more} more of its machine have {one.threads} threads on {_cores(one.cores)}: {OWN_CORES}"


def _cores(number: float) -> str:
    return f"{number:g} {'core' if number == 1 else 'cores'}"


def _distance(one: Binding) -> str:
    nodes = ", ".join(map(str, one.nodes))
    return f"has cores of NUMA node {nodes}, but its GPU {one.gpu} is at node {one.gpu_node}: {NEAR_CORES}"
