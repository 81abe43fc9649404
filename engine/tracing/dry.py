"""Dry run of one rank of any job, for what it sends in a training step, and agreement of several ranks' traces."""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import product

import torch

from engine.comm.collective import AXIS_OF_LANE
from engine.footprint.fit import parameters_per_rank
from engine.grid import Axis, Grid
from engine.measure.memory import peak_bytes
from engine.simulator.events import Issue, Trace
from engine.tracing.step import trace
from engine.training_record import Training


@dataclass(frozen=True, slots=True)
class Sent:
    """Collectives of a step of one kind along one axis. bytes: of the rank's input buffers."""

    kind: str
    axis: str
    calls: int
    bytes: int


@dataclass(frozen=True, slots=True)
class DryRun:
    """Work of one rank in one step.

    step_bytes: the most that its tensors take, state_bytes of them from step to step. traced_s, peak_memory_bytes: what
    tracing took on this machine.
    """

    model: str
    grid: str
    rank: int
    coords: dict[str, int]
    parameters_per_rank: int
    micro_batches: int
    flops: int
    state_bytes: int
    step_bytes: int
    cached_blocks: int
    collectives: tuple[Sent, ...]
    traced_s: float
    peak_memory_bytes: int

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def dry_run(training: Training, grid: Grid, rank: int, *, device_memory: float | None = None) -> tuple[DryRun, Trace]:
    """Trace a step of one rank of the grid. Raises UsageError for a rank that the grid hasn't."""
    start = time.perf_counter()
    traced = trace(training, grid, rank, device_memory=device_memory)
    return DryRun(
        model=training.model.name,
        grid=str(grid),
        rank=rank,
        coords=asdict(grid.coords(rank)),
        parameters_per_rank=parameters_per_rank(training, grid),
        micro_batches=traced.micro_batches,
        flops=traced.flops,
        state_bytes=traced.state_bytes,
        step_bytes=traced.peak_bytes,
        cached_blocks=traced.cached_blocks,
        collectives=tuple(
            Sent(kind, axis, calls, num_bytes) for (kind, axis), (calls, num_bytes) in sorted(traced.sent().items())
        ),
        traced_s=time.perf_counter() - start,
        peak_memory_bytes=peak_bytes(torch.device("cpu"))[1],
    ), traced


Issued = list[tuple[str, int]]
"""A lane's collectives, each as (kind, bytes)."""


def corners(grid: Grid) -> set[int]:
    """Find the ranks at the ends of all axes."""
    ends = [sorted({0, grid[axis] - 1}) for axis in Axis]
    return {grid.rank(**dict(zip(Axis, at, strict=True))) for at in product(*ends)}


def some_groups(grid: Grid, count: int, seed: int = 0) -> set[int]:
    """Draw two ranks each of so many random groups, of every axis in turn."""
    draw, active = random.Random(seed), [axis for axis in Axis if grid[axis] > 1]
    found: set[int] = set()
    for number in range(count if active else 0):
        members = grid.members(active[number % len(active)], draw.randrange(grid.size))
        found.update(draw.sample(members, 2))
    return found


def disagreements(grid: Grid, ranks: Iterable[int], traced: Callable[[int], Trace]) -> list[str]:
    """Write a sentence for every lane on which two of these ranks, of one group, differ. traced: the step of a rank."""
    lanes_of = {rank: _lanes(traced(rank)) for rank in sorted(ranks)}
    found = []
    for lane, axis in AXIS_OF_LANE.items():
        groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for rank in lanes_of:
            groups[grid.members(axis, rank)].append(rank)
        for first, *others in groups.values():
            for other in others:
                if why := _difference(lanes_of[first][lane], lanes_of[other][lane]):
                    found.append(f"On lane {lane} ranks {first} and {other} differ: {why}.")
    return found


def _lanes(trace: Trace) -> defaultdict[str, Issued]:
    lanes: defaultdict[str, Issued] = defaultdict(list)
    for event in trace:
        if isinstance(event, Issue):
            lanes[event.lane].append((event.kind, event.num_bytes))
    return lanes


def _difference(one: Issued, two: Issued) -> str | None:
    for number, (mine, yours) in enumerate(zip(one, two, strict=False)):
        if mine != yours:
            return f"collective {number} is {mine[0]} of {mine[1]} bytes on one, {yours[0]} of {yours[1]} on the other"
    return f"one issues {len(one)} collectives, the other {len(two)}" if len(one) != len(two) else None
