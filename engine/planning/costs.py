"""Price the communication of a network's linear layers on any grid, by equation and axis. No torch."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from engine.comm.collective import Kind
from engine.grid import CUTTING_STAGES, INNER, STREAM, Axis, Grid
from engine.models.operations import Linear, Redistribute
from engine.placement import NORMAL
from engine.planning.equations import (
    EQUATIONS,
    Layer,
    all_gather_z,
    all_reduce_data,
    all_reduce_x,
    all_reduce_y,
    axis_of,
    reduce_scatter_z,
)
from engine.simulator.collectives import Links, ring_s
from engine.training_record import Training

Seconds = Mapping[tuple[str, Axis], float]
"""These are the seconds of a step, by the name of an equation and the axis that its collective runs along."""
MOVED = "moved"
"""The seconds of features that move between x and y have this name, as the papers have no equation for them."""
MESSAGES = "messages"
"""The seconds of activations between stages, and of their gradients, have this name."""
OF_GRADIENTS = (reduce_scatter_z, all_reduce_data)
"""These equations send weight gradients, whose elements may have more bytes than those of activations."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A part is a linear layer with the number of times that a micro-batch gathers its weight and sums its output."""

    layer: Layer
    gathers: int
    sums: int


class Costs:
    def __init__(self, training: Training) -> None:
        model, self._training, self._sequences = training.model, training, training.batch.sequences
        self._rows = self._sequences * model.sequence
        self._parts: Counter[_Part] = Counter()
        self._moved = 0
        """So many features of a row are moved from x to y, and their gradients back."""
        for section in model.network().sections:
            again = 2 if training.checkpoint_activations and section.recomputed else 1
            for op in section.operations:
                if isinstance(op, Linear):
                    rows = self._sequences * section.tokens_of(op, model.sequence)
                    layer = Layer(rows, op.k, op.n, training.compute, transposed=op.split != NORMAL)
                    # Recomputation stops before the last sum of a block, which nothing in the backward needs.
                    self._parts[_Part(layer, again, 1 if op is section.operations[-1] else again)] += section.repeat
                elif isinstance(op, Redistribute):
                    self._moved += section.repeat * op.features

    def equations(self, grid: Grid, links: Links) -> Seconds:
        """Price as the papers do: each collective of each layer runs once a step, for all rows at once (Eq. 1 to 6)."""
        return self._spent(grid, links, 1, lambda _: dict.fromkeys(EQUATIONS, 1))

    def as_run(self, grid: Grid, links: Links, micro: int) -> Seconds:
        """Price as the engine runs, in micro-batches of so many sequences.

        Every micro-batch gathers the weights and scatters their gradients. Recomputation gathers weights and sums
        outputs once more. The sum over data runs once a step and is priced layer by layer, although the engine puts
        small layers into one bucket, which has less latency.
        """
        micros = self._sequences // (grid.batch_split * micro)

        def times(part: _Part) -> dict[Callable[[Layer, Grid, Links], float], int]:
            return {
                all_gather_z: micros * part.gathers,
                reduce_scatter_z: micros,
                all_reduce_y: micros * part.sums,
                all_reduce_x: micros,
                all_reduce_data: 1,
            }

        return self._spent(grid, links, micros, times)

    def _spent(
        self,
        grid: Grid,
        links: Links,
        micros: int,
        times: Callable[[_Part], Mapping[Callable[[Layer, Grid, Links], float], int]],
    ) -> Seconds:
        spent: dict[tuple[str, Axis], float] = defaultdict(float)
        for part, count in self._parts.items():
            layer = replace(part.layer, m=part.layer.m // (grid.model_replicas * micros))
            for equation, often in times(part).items():
                axis, sent = axis_of(equation, layer), layer
                if equation in OF_GRADIENTS:
                    sent = replace(layer, element=self._training.reduce(grid, axis))
                of_stage = count / grid.stages
                spent[equation.__name__, axis] += of_stage * often * equation(sent, grid, links)
        for axis in (INNER, STREAM) if self._moved else ():
            of_rank = self._rows / (grid.batch_split * micros) * self._moved * self._training.compute / grid[axis]
            spent[MOVED, axis] += micros * ring_s(Kind.ALL_GATHER, of_rank, grid[axis], links[axis])
        if grid.stages > 1:
            of_rank = self._rows / (grid.batch_split * micros) * self._training.model.hidden / grid.plane
            message = of_rank * self._training.compute
            spent[MESSAGES, CUTTING_STAGES] = 2 * micros * ring_s(Kind.SEND, message, 2, links[CUTTING_STAGES])
        return dict(spent)
