"""How long a step of a job takes, from the traces of its rank 0.

By default few layers at full width are traced, and two more: every block is like the one before it, so that time,
exposed and hidden communication grow alike with each. The few are two and as many as weigh what the table of tokens
does, whose gradient is still on its way while as much is computed (tests compare both ways). exact: all layers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import prod

from engine.footprint.memory import Footprint, cached_blocks
from engine.grid import Grid
from engine.overlap.flags import AUTO
from engine.simulator.events import Trace
from engine.simulator.machine import MachineModel
from engine.simulator.simulate import Simulated, in_turns, simulate
from engine.tracing.step import trace
from engine.training_record import Training

STEP = 2
"""Layers by which the two traces differ."""


@dataclass(frozen=True, slots=True)
class Traced:
    """What decides the time of a training's step, on any machine.

    whole: of all layers; or of few and of more, and, if blocks are cached, of as many of which STEP are.
    """

    layers: int
    cached_blocks: int
    peak_bytes: float
    whole: Trace | None = None
    few: Trace | None = None
    more: Trace | None = None
    cached: Trace | None = None

    @property
    def drawn(self) -> int:
        """Layers of the largest trace."""
        trace = self.whole or self.more
        assert trace is not None
        return trace.layers

    def on(self, machine: MachineModel, *, timeline: bool = False) -> Simulated:
        """A step of it. timeline: told of `drawn` layers."""
        return in_turns(self._at_its_share(machine, timeline), machine.ranks_a_core)

    def _at_its_share(self, machine: MachineModel, timeline: bool) -> Simulated:
        if self.whole is not None:
            return simulate(self.whole, machine, timeline=timeline)
        assert self.few is not None
        assert self.more is not None
        few, more = simulate(self.few, machine), simulate(self.more, machine, timeline=timeline)
        layer = _scaled(_minus(more, few), 1 / STEP)
        found = _plus(few, _scaled(layer, self.layers - self.few.layers))
        if self.cached is not None:
            saved = _scaled(_minus(simulate(self.cached, machine), more), 1 / STEP)
            found = _plus(found, _scaled(saved, self.cached_blocks))
        return replace(_none_negative(found), peak_bytes=round(self.peak_bytes), timeline=more.timeline)


def traced(training: Training, grid: Grid, *, device_memory: float | None = None, exact: bool = False) -> Traced:
    """Trace rank 0 of a grid. device_memory: sizes cache=auto, as a real run would."""
    layers, overlap = training.model.layers, training.overlap
    few = _few(training)
    more = few + STEP
    if exact or layers <= more:
        whole = trace(training, grid, device_memory=device_memory)
        return Traced(layers, whole.cached_blocks, whole.peak_bytes, whole=whole)
    cached = 0
    if grid.shards > 1 and training.checkpoint_activations and overlap.cache:
        cached = overlap.cache if overlap.cache != AUTO else _fitting(training, grid, device_memory)
    peak = Footprint(replace(training, overlap=replace(overlap, cache=cached))).on(grid).total
    return Traced(
        layers,
        cached,
        peak,
        few=trace(_of(training, few, 0), grid),
        more=trace(_of(training, more, 0), grid),
        cached=trace(_of(training, more, STEP), grid) if cached else None,
    )


def _few(training: Training) -> int:
    network = training.model.network()
    of_block, rest = (
        [prod(p.shape) for p in some if p.sharded] for some in (network.blocks.placements(), network.rest)
    )
    return 2 + max(rest) // sum(of_block)


def _fitting(training: Training, grid: Grid, device_memory: float | None) -> int:
    """Blocks that cache=auto would keep."""
    model, needed = training.model, Footprint(training).on(grid).total
    of_block = sum(p.local_numel(grid) for p in model.network().blocks.placements() if p.sharded)
    block_bytes = of_block * grid.shards * training.compute
    return cached_blocks(training.overlap, device_memory, needed, block_bytes, model.layers)


def _of(training: Training, layers: int, cached: int) -> Training:
    """The same training with so many layers, of which so many are cached."""
    model = replace(training.model, layers=layers)  # type: ignore[type-var]
    return replace(training, model=model, overlap=replace(training.overlap, cache=cached))


def _combined(one: Simulated, two: Simulated, by: float) -> Simulated:
    """one + by * two, figure by figure; what is not told of both is 0 there."""

    def of(name: str) -> object:
        mine, yours = getattr(one, name), getattr(two, name)
        if isinstance(mine, Mapping):
            return {key: mine.get(key, 0.0) + by * yours.get(key, 0.0) for key in {**mine, **yours}}
        return mine + by * yours

    names = (field.name for field in fields(Simulated) if field.name != "timeline")
    return Simulated(**{name: of(name) for name in names})  # type: ignore[arg-type]


def _none_negative(found: Simulated) -> Simulated:
    """What the line through few layers takes below zero of an axis is compute."""
    exposed = {axis: max(0.0, seconds) for axis, seconds in found.exposed_s.items()}
    more_s = sum(exposed.values()) - found.communication_s
    return replace(found, exposed_s=exposed, compute_s=found.compute_s - more_s)


def _plus(one: Simulated, two: Simulated) -> Simulated:
    return _combined(one, two, 1.0)


def _minus(one: Simulated, two: Simulated) -> Simulated:
    return _combined(one, two, -1.0)


def _scaled(one: Simulated, by: float) -> Simulated:
    return _combined(one, one, by - 1.0)
