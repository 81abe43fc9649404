"""Prediction of a step without stages from traces of a job's rank 0.

A network whose blocks differ is traced whole. Of any other, unless all layers are asked for (exact), few at full width
are traced, and then two more: every block is like the one before it, so that time, exposed and hidden communication
grow alike with each, and memory as it is counted. The few are two and as many as weigh what the table of tokens does,
whose gradient is on its way while they are computed. Where blocks are recomputed in groups whole ones make the
difference: between both traces, and from the few to all layers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import prod

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

    layers: int
    cached_blocks: int
    peak_bytes: float
    whole: Trace | None = None
    """of all layers"""
    few: Trace | None = None
    """of few layers, where the whole isn't traced"""
    more: Trace | None = None
    """of some more"""
    cached: Trace | None = None
    """of as many as more, those by which these differ being cached, if blocks are"""

    @property
    def drawn(self) -> int:
        """Layers of the largest trace, which a timeline shows."""
        trace = self.whole or self.more
        assert trace is not None
        return trace.layers

    def on(self, machine: MachineModel, *, timeline: bool = False) -> Simulated:
        """Simulate a step. timeline: whether to say what runs when."""
        return in_turns(self._at_its_share(machine, timeline), machine.ranks_per_core)

    def _at_its_share(self, machine: MachineModel, timeline: bool) -> Simulated:
        if self.whole is not None:
            return simulate(self.whole, machine, timeline=timeline)
        assert self.few is not None
        assert self.more is not None
        few, more = simulate(self.few, machine), simulate(self.more, machine, timeline=timeline)
        step = self.more.layers - self.few.layers
        layer = _scaled(_combined(more, few, -1.0), 1 / step)
        found = _combined(few, _scaled(layer, self.layers - self.few.layers))
        if self.cached is not None:
            saved = _scaled(_combined(simulate(self.cached, machine), more, -1.0), 1 / step)
            found = _combined(found, _scaled(saved, self.cached_blocks))
        return replace(_none_negative(found), peak_bytes=round(self.peak_bytes), timeline=more.timeline)


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
    layers = training.model.layers
    if exact or not training.model.network().alike:
        return _trace_whole(training, grid, device_memory, compiled)
    training = training.recomputing(training.checkpoint_group(grid))  # "auto" would follow the layers
    group = training.checkpoint_group(grid) or 1
    few, step = _count_few(training), -(-STEP // group) * group
    few += (layers - few) % group
    if layers <= few + step:
        return _trace_whole(training, grid, device_memory, compiled)
    first, second = (trace(_with_layers(training, count, 0), grid, compiled=compiled) for count in (few, few + step))
    below = second.peak_bytes - _count(training, grid, few + step, 0)
    cached = blocks_cached(training, grid, below + _count(training, grid, layers, 0), device_memory)
    third = trace(_with_layers(training, few + step, step), grid, compiled=compiled) if cached else None
    return Traced(layers, cached, below + _count(training, grid, layers, cached), few=first, more=second, cached=third)


def _count(training: Training, grid: Grid, layers: int, cached: int) -> float:
    """Count the bytes of so many layers, of which so many are cached: what differs is kept for every one alike."""
    return Footprint(_with_layers(training, layers, cached), "meta").on(grid).total


def _trace_whole(training: Training, grid: Grid, device_memory: float | None, compiled: Compiled) -> Traced:
    whole = trace(training, grid, device_memory=device_memory, compiled=compiled)
    return Traced(training.model.layers, whole.cached_blocks, whole.peak_bytes, whole=whole)


def _count_few(training: Training) -> int:
    network = training.model.network()
    of_block, rest = (
        [prod(p.shape) for p in some if p.sharded]
        for some in (network.blocks[0].placements(network.mode), network.rest)
    )
    return 2 + max(rest) // sum(of_block)


def _with_layers(training: Training, layers: int, cached: int) -> Training:
    """Change a training to so many layers, of which so many are cached."""
    model = replace(training.model, layers=layers)  # type: ignore[type-var]
    return replace(training, model=model, overlap=replace(training.overlap, cache=cached))


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
