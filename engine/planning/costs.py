"""What a network's linear layers spend on communication on any grid, by equation and axis. No torch in it."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from engine.grid import Axis, Grid
from engine.overlap.bucket import HOP_S
from engine.planning.bandwidth import Bandwidths
from engine.planning.collectives import (
    EQUATIONS,
    WITHIN_NODE,
    Layer,
    Link,
    Links,
    all_gather_z,
    all_reduce_data,
    all_reduce_x,
    all_reduce_y,
    axis_of,
    linear_layers,
    reduce_scatter_z,
)
from engine.training_record import Training

Seconds = Mapping[tuple[str, Axis], float]
"""Of a step, by an equation's name and the axis that it runs along."""
LinksOn = Callable[[Grid], Links]
OF_GRADIENTS = (reduce_scatter_z, all_reduce_data)
"""Equations of weight gradients, whose format on their way may be a wider one."""


def papers_links(bandwidths: Bandwidths) -> LinksOn:
    """The papers' links: a bandwidth and nothing else, as the placement of a grid gives it (axonn-sc24 Eq. 7)."""
    return lambda grid: {axis: Link(bandwidths.along(grid, axis)) for axis in Axis}


def run_links(bandwidths: Bandwidths) -> LinksOn:
    """Links with what the papers leave out: each step of a ring has a latency, and see Bandwidths.in_a_run."""

    def links(grid: Grid) -> Links:
        found: dict[Axis, Link] = {}
        for axis in Axis:
            latency_s = HOP_S * (1 if bandwidths.leaves_node(grid, axis) else WITHIN_NODE)
            found[axis] = Link(bandwidths.in_a_run(grid, axis), latency_s)
        return found

    return links


@dataclass(frozen=True, slots=True)
class _Part:
    """A linear layer, and how many times a micro-batch gathers its weight and sums its output."""

    layer: Layer
    gathers: int
    sums: int


class Costs:
    """Of one training."""

    def __init__(self, training: Training) -> None:
        model, again = training.model, 2 if training.checkpoint_activations else 1
        self._sequences, self._training = training.batch.sequences, training
        block, head = linear_layers(model, self._sequences * model.sequence, training.compute)
        # Nothing needs the last sum of a block that is computed again: it is left out (closed form of the engine).
        parts = [_Part(layer, again, again if at < len(block) - 1 else 1) for at, layer in enumerate(block)]
        self._parts = Counter({part: parts.count(part) * model.layers for part in parts})
        self._parts[_Part(head, 1, 1)] += 1

    def equations(self, grid: Grid, links: Links) -> Seconds:
        """As the papers count: each collective of each layer once a step, for all rows at once (Eq. 1 to 6)."""
        return self._spent(grid, links, 1, lambda _: dict.fromkeys(EQUATIONS, 1))

    def as_run(self, grid: Grid, links: Links, micro: int) -> Seconds:
        """As the engine runs them: weights gathered, and their gradients scattered, in each micro-batch of so many
        sequences; gathered and outputs summed once more where activations are recomputed; over data once a step, each
        layer for itself (the engine puts small ones into one bucket, which has less latency).
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
                spent[equation.__name__, axis] += count * often * equation(sent, grid, links)
        return dict(spent)
