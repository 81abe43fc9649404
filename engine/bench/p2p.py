"""Measure what each back end takes for a message between two ranks, and for a sum among several, by their size.

Within a node and between two, as osu_latency and osu_allreduce of the OSU micro-benchmarks do, so that figures compare
with theirs and with axonn-ipdps22, Fig. 3 and 4. A time includes the way through the engine, about 10 µs of a
processor a message, which theirs don't have. The back ends take turns, sample by sample, so that their ratios are fair.
"""

import importlib.util
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from engine.bench.frame import Benchmark, Table, check_measurable, parse_doubling
from engine.bench.groups import AXIS, Connect, Party
from engine.bench.world import Sampler, World
from engine.comm import mpi
from engine.comm.collective import Kind
from engine.comm.funnel import Comm
from engine.comm.groups import ProcessGroups
from engine.comm.launch import Launch
from engine.comm.launchers import has_mpi
from engine.errors import UsageError
from engine.result.schema import Result
from engine.result.schema.bench import Backend, Operation, Transfer

log = logging.getLogger(__name__)

DTYPE = torch.float32
LONGEST = 1 << 31
"""A message has fewer bytes, so that every MPI can count them."""
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
BYTES = r"\d{1,10}(?:[KMG]iB)?"
BUFFERS = 6
"""Messages of the largest size that a rank may hold: two of its own, and what back ends put between."""
BACKENDS: dict[str, tuple[Backend, ...]] = {"cpu": ("gloo", "mpi"), "cuda": ("nccl", "mpi")}
"""Back ends of each kind of device."""
KNOWN = tuple(dict.fromkeys(name for names in BACKENDS.values() for name in names))
CONNECT: dict[Backend, Connect] = {"gloo": ProcessGroups, "nccl": ProcessGroups, "mpi": mpi.MpiGroups}
WORDS: dict[Operation, str] = {"message": "message", "all_reduce": "all-reduce"}


@dataclass(frozen=True, slots=True)
class P2P(Benchmark):
    """Times of transfers. backends: back ends; None takes those that are there. lengths: in bytes, ascending."""

    backends: tuple[Backend, ...] | None
    lengths: tuple[int, ...]
    repeats: int
    time_budget_s: float

    kind, dtype = "p2p", "fp32"
    unmeasured = "No transfer could be measured"
    lost = "No transfer could be measured: it failed with"
    between_ranks = True

    def check(self, launch: Launch, device: torch.device) -> None:
        if launch.world_size < 2:
            raise UsageError("A message takes two ranks: start several, such as by torchrun --nproc-per-node 2.")
        check_measurable("A transfer", repeats=self.repeats, time_budget_s=self.time_budget_s)
        there = BACKENDS[device.type]
        if wrong := [name for name in self.backends or () if name not in there]:
            raise UsageError(
                f"Back ends on {device.type} are {', '.join(there)}, but {wrong[0]} was given: leave it out, or take "
                "another --device."
            )
        if "mpi" in self._backends(device):
            mpi.check(launch, device)

    def measure(self, world: World, found: dict[str, Any]) -> None:
        longest = self.lengths[-1]
        world.size_of_buffers(longest, longest, longest, BUFFERS, "messages of {:.3g} GB take")
        sent, received = world.zeros(DTYPE, longest // DTYPE.itemsize, longest // DTYPE.itemsize)
        races = _races(world, self._backends(world.device))
        sampler = Sampler(world, self.repeats, self.time_budget_s, len(self.lengths) * len(races))
        for length in self.lengths:
            if sampler.spent:
                log.warning("messages of %d bytes and more are left out: the time budget is over", length)
                return
            elements = length // DTYPE.itemsize
            for race in races:
                times = race.run(sampler, sent[:elements], received[:elements])
                found["transfers"] = (*found.get("transfers", ()), *times)

    @staticmethod
    def table(result: Result) -> Table:
        backends = list(dict.fromkeys(one.backend for one in result.transfers))
        rows: dict[tuple[str, ...], dict[Backend, str]] = {}
        for one in sorted(result.transfers, key=lambda one: (one.operation != "message", one.nodes)):
            where = "within a node" if one.nodes == 1 else f"between {one.nodes} nodes"
            what = f"{WORDS[one.operation]} of {one.ranks} ranks {where}"
            rows.setdefault((what, str(one.num_bytes)), {})[one.backend] = f"{one.average_s * 1e6:.2f}"
        found = [(*row, *(times.get(backend, "") for backend in backends)) for row, times in rows.items()]
        return ("transfer", "bytes", *(f"{backend} µs" for backend in backends)), found

    def _backends(self, device: torch.device) -> tuple[Backend, ...]:
        """Return those that were asked for, or all; MPI where it could have started these ranks."""
        if self.backends is not None:
            return self.backends
        started = has_mpi(os.environ) and importlib.util.find_spec("mpi4py") is not None
        return tuple(name for name in BACKENDS[device.type] if name != "mpi" or started)


@dataclass(frozen=True, slots=True)
class Race:
    """Back ends that do the same in turns. parties: the ranks that do, by back end."""

    operation: Operation
    nodes: int
    parties: dict[Backend, Party]

    def run(self, sampler: Sampler, sent: torch.Tensor, received: torch.Tensor) -> list[Transfer]:
        """Time it with buffers of one length. Collective."""
        time = {"message": _one_way_s, "all_reduce": _all_reduce_s}[self.operation]
        works: list[Callable[[int], float]] = [partial(time, party, sent, received) for party in self.parties.values()]
        return [
            Transfer(
                operation=self.operation,
                backend=backend,
                nodes=self.nodes,
                ranks=self.parties[backend].size,
                num_bytes=sent.nbytes,
                **one.model_dump(exclude={"processor_s"}),
            )
            for backend, one in zip(self.parties, sampler.in_turns(works), strict=True)
        ]


def _races(world: World, backends: Sequence[Backend]) -> list[Race]:
    """Bring the ranks together: two of a node, two of two nodes, all of a node and all of all nodes. Collective."""
    nodes = world.nodes()
    first, every = nodes[0], [rank for node in nodes for rank in node]
    groups: list[tuple[Operation, int, Sequence[int]]] = []
    if len(first) > 1:
        groups += [("message", 1, first[:2]), ("all_reduce", 1, first)]
    if len(nodes) > 1:
        groups += [("message", 2, [nodes[0][0], nodes[1][0]]), ("all_reduce", len(nodes), every)]
    races = []
    for operation, count, ranks in groups:
        parties = {backend: Party([tuple(ranks)], world.comm, CONNECT[backend]) for backend in backends}
        races.append(Race(operation, count, parties))
    return races


def _one_way_s(party: Party, sent: torch.Tensor, received: torch.Tensor, calls: int) -> float:
    """Time messages there and back, and halve that."""

    def there_and_back(comm: Comm) -> None:
        own = comm.coords[AXIS]
        for kind in (Kind.SEND, Kind.RECV) if own == 0 else (Kind.RECV, Kind.SEND):
            buffer = sent if kind is Kind.SEND else received
            comm.issue(kind, AXIS, buffer, peer=1 - own, at_once=True, unavoidable=True).wait()

    return party.seconds(there_and_back, calls) / 2


def _all_reduce_s(party: Party, sent: torch.Tensor, unused: torch.Tensor, calls: int) -> float:
    """Time calls that the ranks begin together, each by itself."""
    total_s = 0.0
    for _ in range(calls):
        total_s += party.seconds(lambda comm: comm.run(Kind.ALL_REDUCE, AXIS, sent), 1)
        if party.takes_part:
            party.comm.barrier()
    return total_s


def parse_backends(text: str) -> tuple[Backend, ...]:
    """Read "gloo,mpi". Raises UsageError."""
    names = tuple(dict.fromkeys(text.split(",")))
    if wrong := [name for name in names if name not in KNOWN]:
        raise UsageError(f"Back ends are {', '.join(KNOWN)}, by commas, but {wrong[0]!r} was given.")
    return names  # type: ignore[return-value]


def parse_lengths(text: str) -> tuple[int, ...]:
    """Read "1KiB..256MiB", which doubles, or "4096,1MiB": bytes, ascending, each once. Raises UsageError.

    >>> parse_lengths("1KiB..4KiB")
    (1024, 2048, 4096)
    """
    found = parse_doubling(text, BYTES, _bytes, LONGEST)
    if not found or any(not 0 < one < LONGEST or one % DTYPE.itemsize for one in found):
        raise UsageError(
            "Sizes are written FIRST..LAST (doubling) or as a comma list, of multiples of 4 bytes below 2 GiB, such as "
            f"1KiB..256MiB, but {text!r} was given."
        )
    return tuple(sorted(found))


def _bytes(text: str) -> int:
    number = text.rstrip("KMGiB")
    return int(number) * UNITS[text.removeprefix(number)]
