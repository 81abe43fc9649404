"""Price the communication of a network's linear layers and convolutions on any grid, by equation and axis. No torch."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from engine.comm.collective import Kind
from engine.grid import CUTTING_STAGES, INNER, STREAM, Axis, Grid
from engine.models.image_operations import Added, Conv2d
from engine.models.network import Section
from engine.models.operations import Linear, Redistribute
from engine.pipeline.cut import cut_evenly
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
    """A part is a linear layer with the number of times that a micro-batch gathers its weight and sums its output. Half
    a sum scatters what it sums.
    """

    layer: Layer
    gathers: int
    sums: float


class Costs:
    def __init__(self, training: Training) -> None:
        model, self._training, self._sequences = training.model, training, training.batch.sequences
        self._network = model.network()
        self._parts: Counter[_Part] = Counter()
        self._moved: Counter[Axis] = Counter()
        """So many features of a sample are gathered over x to be split over y, and their gradients back."""
        for section in self._network.sections:
            again = 2 if training.checkpoint_activations and section.recomputed else 1
            last = _last_needed(section)
            for place, op in enumerate(section.operations):
                tokens = section.tokens_of(op, model.sequence)
                # Recomputation stops before the last sum of a block, which nothing in the backward needs.
                repeats = again if place < last else 1
                if isinstance(op, Linear):
                    layer = _layer(op, self._sequences * tokens, training.compute)
                    # Where a sum is scattered the gradient of what it gives is gathered.
                    joins = isinstance(op, Conv2d) and op.joins
                    self._parts[_Part(layer, again, (repeats + 1) / 2 if joins else repeats)] += section.repeat
                elif isinstance(op, Redistribute):
                    features = section.repeat * tokens * op.features
                    self._moved += Counter({INNER: repeats * features, STREAM: features})

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

        def times(part: _Part) -> dict[Callable[[Layer, Grid, Links], float], float]:
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
        times: Callable[[_Part], Mapping[Callable[[Layer, Grid, Links], float], float]],
    ) -> Seconds:
        spent: dict[tuple[str, Axis], float] = defaultdict(float)
        for part, count in self._parts.items():
            layer = replace(part.layer, m=part.layer.m // (grid.model_replicas * micros))
            for equation, often in times(part).items():
                axis, sent = axis_of(equation, layer), layer
                if axis is None:
                    continue
                if equation in OF_GRADIENTS:
                    sent = replace(layer, element=self._training.reduce(grid, axis))
                of_stage = count / grid.stages
                spent[equation.__name__, axis] += of_stage * often * equation(sent, grid, links)
        samples = self._sequences / (grid.batch_split * micros)
        for axis, features in self._moved.items():
            of_rank = samples * features * self._training.compute / grid[axis]
            spent[MOVED, axis] += micros * ring_s(Kind.ALL_GATHER, of_rank, grid[axis], links[axis])
        if grid.stages > 1:
            cut = cut_evenly(self._training.model, grid.stages, recompute=self._training.checkpoint_activations)
            message = samples * max(cut.sent(self._network, grid)[1:-1]) * self._training.compute
            spent[MESSAGES, CUTTING_STAGES] = 2 * micros * ring_s(Kind.SEND, message, 2, links[CUTTING_STAGES])
        return dict(spent)


def _last_needed(section: Section) -> int:
    """Find the operation at which recomputation stops: the last product, where nothing comes behind it but the way of
    its features to another axis, and its sum with what the block began with.
    """
    last = len(section.operations) - 1
    while isinstance(section.operations[last], Redistribute | Added):
        last -= 1
    return last if isinstance(section.operations[last], Linear) else len(section.operations)


def _layer(op: Linear, rows: int, element: int) -> Layer:
    window, rows_in = 1, 1.0
    if isinstance(op, Conv2d):
        window = op.kernel**2
        rows_in = op.pixels_in / op.tokens if op.pixels_in and op.tokens else 1.0
    return Layer(rows, op.k, op.n, element, op.split, window, rows_in, op.reads_data)
