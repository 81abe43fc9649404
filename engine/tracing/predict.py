"""Prediction of a step without stages from traces of a job's rank 0.

A network whose blocks differ is traced whole. Of any other, unless all layers are asked for (exact), few at full width
are traced, and then two more: every block is like the one before it, so that time, exposed and hidden communication
grow alike with each, and memory as it is counted. The few are two and as many as weigh what the table of tokens does,
whose gradient is on its way while they are computed. Where blocks are recomputed in groups whole ones make the
difference: between both traces, and from the few to all layers. Where some blocks are recomputed and others aren't,
there are few of either kind, and then two more of each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from typing import NamedTuple

from engine.footprint.memory import Footprint, blocks_cached
from engine.grid import Grid
from engine.simulator.events import Trace
from engine.simulator.machine import MachineModel
from engine.simulator.simulate import Simulated, in_turns, simulate
from engine.tracing.step import Compiled, trace
from engine.training_record import Training

STEP = 2
"""Layers by which the two traces differ, or the smallest number of whole groups that has as many."""


@dataclass(frozen=True, slots=True)
class Traced:
    """Traces that decide the time of a training's step, on any machine, and its memory."""

    cached_blocks: int
    peak_bytes: float
    terms: Sequence[tuple[Trace, float]]
    """traces that a step is added up of, each with how often it counts: one of all layers once, or several of few"""

    @property
    def whole(self) -> bool:
        """Whether all layers were traced."""
        return len(self.terms) == 1

    @property
    def shown(self) -> Trace:
        """Largest trace, of which a timeline is drawn."""
        return max((trace for trace, _ in self.terms), key=lambda trace: trace.layers)

    @property
    def drawn(self) -> int:
        """Layers of that trace."""
        return self.shown.layers

    def on(self, machine: MachineModel, *, timeline: bool = False) -> Simulated:
        """Simulate a step. timeline: whether to say what runs when."""
        return in_turns(self._at_its_share(machine, timeline), machine.ranks_per_core)

    def _at_its_share(self, machine: MachineModel, timeline: bool) -> Simulated:
        largest = self.shown
        shown = simulate(largest, machine, timeline=timeline)
        if self.whole:
            return shown
        found = _scaled(shown, 0.0)
        for one, often in self.terms:
            found = _combined(found, shown if one is largest else simulate(one, machine), often)
        return replace(_none_negative(found), peak_bytes=round(self.peak_bytes), timeline=shown.timeline)


def trace_network(
    training: Training,
    grid: Grid,
    *,
    device_memory: float | None = None,
    exact: bool = False,
    compiled: Compiled = "nothing",
) -> Traced:
    """Trace rank 0 of a grid. device_memory: bytes, by which cache=auto is sized as in a real run. compiled: as trace()
    has it.
    """
    if exact or not training.model.network().alike:
        return _trace_whole(training, grid, device_memory, compiled)
    training = training.recomputing(training.checkpoint_group(grid))  # "auto" would follow the layers
    every = _Blocks(training.recomputed_blocks, training.model.layers - training.recomputed_blocks)
    few, steps = _few_of(every, training, grid)
    if not steps:
        return _trace_whole(training, grid, device_memory, compiled)

    def traced(blocks: _Blocks) -> Trace:
        return trace(blocks.of(training), grid, compiled=compiled)

    def counted(blocks: _Blocks) -> float:
        """Count bytes: what differs is kept for every block of a kind alike."""
        return Footprint(blocks.of(training), "meta").on(grid).total

    first = traced(few)
    terms = [(first, 1 - sum(often for _, often in steps)), *((traced(few + step), often) for step, often in steps)]
    more = few + steps[0][0]
    below = terms[1][0].peak_bytes - counted(more)
    cached = min(blocks_cached(training, grid, below + counted(every), device_memory), every.recomputed)
    if cached:
        by = steps[0][0].recomputed or min(cached, few.recomputed)
        terms[1] = terms[1][0], terms[1][1] - cached / by
        terms.append((traced(more._replace(cached=by)), cached / by))
    return Traced(cached, below + counted(every._replace(cached=cached)), terms)


class _Blocks(NamedTuple):
    """Numbers of blocks."""

    recomputed: int = 0
    once: int = 0
    """that run forward once"""
    cached: int = 0
    """of those that are recomputed, the last ones"""

    def __add__(self, other: "_Blocks") -> "_Blocks":  # type: ignore[override]
        return _Blocks(*map(sum, zip(self, other, strict=True)))

    def of(self, training: Training) -> Training:
        """Change a training to these."""
        model = replace(training.model, layers=self.recomputed + self.once)  # type: ignore[type-var]
        overlap = replace(training.overlap, cache=self.cached)
        some = self.recomputed if self.recomputed and self.once else None
        return replace(training, model=model, overlap=overlap, checkpoint_blocks=some)


def _few_of(every: _Blocks, training: Training, grid: Grid) -> tuple[_Blocks, list[tuple[_Blocks, float]]]:
    """Return few blocks of each kind, and of kinds with many more blocks that are added, with how often they are to be
    added for all of the kind.
    """
    few, steps = _Blocks(), list[tuple[_Blocks, float]]()
    for kind, group in (("recomputed", training.checkpoint_group(grid) or 1), ("once", 1)):
        count, some, step = getattr(every, kind), _count_few(training), -(-STEP // group) * group
        some += (count - some) % group
        if count <= some + step:
            few += _Blocks(**{kind: count})
            continue
        few += _Blocks(**{kind: some})
        steps.append((_Blocks(**{kind: step}), (count - some) / step))
    return few, steps


def _trace_whole(training: Training, grid: Grid, device_memory: float | None, compiled: Compiled) -> Traced:
    whole = trace(training, grid, device_memory=device_memory, compiled=compiled)
    return Traced(whole.cached_blocks, whole.peak_bytes, [(whole, 1.0)])


def _count_few(training: Training) -> int:
    network = training.model.network()
    of_block, rest = (
        [prod(p.shape) for p in some if p.sharded]
        for some in (network.blocks[0].placements(network.mode), network.rest)
    )
    return 2 + max(rest) // sum(of_block)


def _combined(one: Simulated, two: Simulated, by: float = 1.0) -> Simulated:
    """Add up one + by * two, figure by figure; an axis or phase that one of them lacks is 0 there."""

    def combine(name: str) -> object:
        mine, yours = getattr(one, name), getattr(two, name)
        if isinstance(mine, Mapping):
            return {key: mine.get(key, 0.0) + by * yours.get(key, 0.0) for key in {**mine, **yours}}
        return mine + by * yours

    names = (field.name for field in fields(Simulated) if field.name not in ("timeline", "schedule"))
    return Simulated(**{name: combine(name) for name in names})  # type: ignore[arg-type]


def _none_negative(found: Simulated) -> Simulated:
    """Count exposed time as compute where the extrapolation takes that of an axis below zero."""
    exposed = {axis: max(0.0, seconds) for axis, seconds in found.exposed_s.items()}
    more_s = sum(exposed.values()) - found.communication_s
    return replace(found, exposed_s=exposed, compute_s=found.compute_s - more_s)


def _scaled(one: Simulated, by: float) -> Simulated:
    return _combined(one, one, by - 1.0)
