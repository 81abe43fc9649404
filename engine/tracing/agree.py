"""Do the ranks of a group issue the same collectives in the same order? Otherwise a job hangs or mixes up data."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import product

from engine.comm.collective import AXIS_OF_LANE
from engine.grid import Axis, Grid
from engine.simulator.events import Issue, Trace

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
