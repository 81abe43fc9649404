"""Prices of collectives by the equations of axonn-sc24 V-B (par4d V), and as the engine runs a step. No torch.

A Link that has a bandwidth and no latency gives the papers' form; a real Link is priced by the same code.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from engine.comm.collective import Kind
from engine.grid import CUTTING_STAGES, SPLITTING_FEATURES, Axis, Grid
from engine.models.image_operations import Added, Conv2d
from engine.models.network import Section
from engine.models.operations import Linear, Redistribute
from engine.pipeline.cut import Cut, cut_evenly
from engine.simulator.collectives import Links, ring_s
from engine.tensor_mode import TensorMode
from engine.training_record import Training


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer computes O = I W with I [m, k] and W [k, n], where m counts the rows of ONE data group.

    element: bytes of an element. split: the axes that split n and k, x and y in the equations; they change places in a
    transposed layer, and one that is None splits nothing. Of a convolution k and n are channels and rows are pixels
    (par4d III); window: elements of W for each pair of channels. rows_in: rows of I for each of O. reads_data: whether
    I is data, of which no gradient is made.
    """

    m: int
    k: int
    n: int
    element: int
    split: tuple[Axis | None, Axis | None] = SPLITTING_FEATURES
    window: int = 1
    rows_in: float = 1
    reads_data: bool = False

    @property
    def out_axis(self) -> Axis | None:
        """Axis that splits n; x in the equations."""
        return self.split[0]

    @property
    def in_axis(self) -> Axis | None:
        """Axis that splits k; y in the equations."""
        return self.split[1]

    def shard(self, grid: Grid) -> float:
        """Count the bytes of a rank's shard of W."""
        parts = _ranks(grid, self.out_axis) * _ranks(grid, self.in_axis) * grid.z
        return self.k * self.n * self.window / parts * self.element


def _ranks(grid: Grid, axis: Axis | None) -> int:
    return 1 if axis is None else grid[axis]


def all_gather_z(layer: Layer, grid: Grid, links: Links) -> float:
    """Return the seconds in which W is gathered over z: t_AG,z of axonn-sc24 Eq. 1, par4d Eq. 4.

    (Gz - 1) / beta * k n / (Gx Gy Gz)
    """
    return ring_s(Kind.ALL_GATHER, layer.shard(grid), grid.z, links[Axis.Z])


def reduce_scatter_z(layer: Layer, grid: Grid, links: Links) -> float:
    """Return the seconds in which dW is summed and scattered over z: t_RS,z of axonn-sc24 Eq. 2, par4d Eq. 5.

    (Gz - 1) / (beta Gz) * k n / (Gx Gy)
    """
    return ring_s(Kind.REDUCE_SCATTER, layer.shard(grid) * grid.z, grid.z, links[Axis.Z])


def all_reduce_y(layer: Layer, grid: Grid, links: Links) -> float:
    """Return the seconds in which O is summed over the axis that splits k: t_AR,y of axonn-sc24 Eq. 3, par4d Eq. 6.

    2 (Gy - 1) / (beta Gy) * m n / (Gz Gx)
    """
    num_bytes = layer.m * layer.n / (grid.z * _ranks(grid, layer.out_axis)) * layer.element
    return _sum(num_bytes, grid, layer.in_axis, links)


def all_reduce_x(layer: Layer, grid: Grid, links: Links) -> float:
    """Return the seconds in which dI is summed over the axis that splits n: t_AR,x of axonn-sc24 Eq. 4, par4d Eq. 7.

    2 (Gx - 1) / (beta Gx) * m k / (Gz Gy)
    """
    rows = 0.0 if layer.reads_data else layer.m * layer.rows_in
    num_bytes = rows * layer.k / (grid.z * _ranks(grid, layer.in_axis)) * layer.element
    return _sum(num_bytes, grid, layer.out_axis, links)


def _sum(num_bytes: float, grid: Grid, axis: Axis | None, links: Links) -> float:
    return 0.0 if axis is None or not num_bytes else ring_s(Kind.ALL_REDUCE, num_bytes, grid[axis], links[axis])


def all_reduce_data(layer: Layer, grid: Grid, links: Links) -> float:
    """Return the seconds in which dW is summed over data: t_AR,data of axonn-sc24 Eq. 5, par4d Eq. 8.

    2 (Gdata - 1) / (beta Gdata) * k n / (Gx Gy Gz)
    """
    return ring_s(Kind.ALL_REDUCE, layer.shard(grid), grid.data, links[Axis.DATA])


EQUATIONS = (all_gather_z, reduce_scatter_z, all_reduce_y, all_reduce_x, all_reduce_data)
"""The sum of these is t_comm of one layer: axonn-sc24 Eq. 6, par4d Eq. 9."""


def axis_of(equation: Callable[[Layer, Grid, Links], float], layer: Layer) -> Axis | None:
    """Return the axis that the equation's collective runs along, if any; x and y change places in a transposed one."""
    if equation in (all_reduce_y, all_reduce_x):
        return layer.in_axis if equation is all_reduce_y else layer.out_axis
    return Axis.DATA if equation is all_reduce_data else Axis.Z


SecondsByEquation = Mapping[tuple[str, Axis], float]
"""These are the seconds of a step, by the name of an equation and the axis that its collective runs along."""
MOVED = "moved"
"""The seconds of features that move between x and y have this name, as the papers have no equation for them."""
PANELS = "panels"
"""The seconds of panels that SUMMA broadcasts and sums on a square have this name."""
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
    gathers: float
    sums: float


def panels_s(layer: Layer, mode: TensorMode, grid: Grid, links: Links, forwards: float) -> Mapping[Axis, float]:
    """Return the seconds in which SUMMA sends the panels of a layer, by axis, one after the other.

    Of the three products, the first run forwards times, each broadcasts along one axis and broadcasts or sums along the
    other: 3 (q - 1) (S + W) elements of all ranks, where W is the weight and S what the layer takes, or where that is
    smaller and the mode goes by size what it gives (layers/modes/summa.py).
    """
    across, (down,) = mode.stream.features, mode.stream.rows
    transposed, side = mode.by_size and layer.n < layer.k, grid[across]
    moved = layer.m / grid.z * (layer.n if transposed else layer.k) * layer.element / side**2
    own = layer.shard(grid) * grid.z
    copies = {across: 2 if transposed else forwards + 1, down: forwards + 1}
    sums = {across: forwards if transposed else 1, down: 1}
    return {
        axis: side
        * (
            copies[axis] * ring_s(Kind.BROADCAST, size, side, links[axis])
            + sums[axis] * ring_s(Kind.REDUCE, size, side, links[axis])
        )
        for axis, size in ((across, moved), (down, own))
    }


class Costs:
    def __init__(self, training: Training) -> None:
        model, self._training, self._sequences = training.model, training, training.batch.sequences
        self._network = model.network()
        self._cuts: dict[int, Cut] = {}
        self._parts: Counter[_Part] = Counter()
        self._moved: Counter[Axis] = Counter()
        """Features of a sample gathered over the axis of inner ones to be split as the stream's, and their gradients
        back.
        """
        mode = self._network.mode
        for section, run_twice in self._network.run_twice(training.recomputed_blocks):
            again = 1 + run_twice / section.repeat
            last = _last_needed(section)
            for place, op in enumerate(section.operations):
                tokens = section.tokens_of(op, model.sequence)
                # Recomputation stops before the last sum of a block, which nothing in the backward needs.
                repeats = again if place < last else 1
                if isinstance(op, Linear):
                    layer = _layer(op, mode.split(op.sides), self._sequences * tokens, training.compute)
                    # Where a sum is scattered the gradient of what it gives is gathered.
                    joins = isinstance(op, Conv2d) and op.joins
                    self._parts[_Part(layer, again, (repeats + 1) / 2 if joins else repeats)] += section.repeat
                elif isinstance(op, Redistribute):
                    features = section.repeat * tokens * op.features
                    self._moved += Counter({mode.inner.features: repeats * features, mode.stream.features: features})

    def equations(self, grid: Grid, links: Links) -> SecondsByEquation:
        """Price as the papers do: each collective of each layer runs once a step, for all rows at once (Eq. 1 to 6)."""
        return self._spent(grid, links, 1, lambda _: dict.fromkeys(EQUATIONS, 1))

    def as_run(self, grid: Grid, links: Links, micro: int) -> SecondsByEquation:
        """Price as the engine runs, in micro-batches of so many sequences.

        Every micro-batch gathers the weights and scatters their gradients. Recomputation gathers weights and sums
        outputs once more. With split activations half of each sum scatters, outputs in the forward and gradients of
        inputs in the backward, and the other half gathers: inputs, and gradients of outputs. The sum over data runs
        once a step and is priced layer by layer, although the engine puts small layers into one bucket, which has less
        latency.
        """
        micros = self._sequences // (grid.batch_split * micro)
        mode = self._training.mode(grid, self._network)

        def times(part: _Part) -> dict[Callable[[Layer, Grid, Links], float], float]:
            return {
                all_gather_z: micros * part.gathers,
                reduce_scatter_z: micros,
                all_reduce_y: micros * ((part.sums + 1) / 2 if mode.gathers else part.sums),
                all_reduce_x: micros * ((part.gathers + mode.gathers_again + 1) / 2 if mode.gathers else 1),
                all_reduce_data: 1,
            }

        return self._spent(grid, links, micros, times)

    def _spent(
        self,
        grid: Grid,
        links: Links,
        micros: int,
        times: Callable[[_Part], Mapping[Callable[[Layer, Grid, Links], float], float]],
    ) -> SecondsByEquation:
        spent: dict[tuple[str, Axis], float] = defaultdict(float)
        mode = self._training.mode(grid, self._network)
        for part, count in self._parts.items():
            layer = _with(part.layer, part.layer.m // (grid.model_replicas * micros), part.layer.element)
            of_stage = count / grid.stages
            for equation, often in times(part).items():
                axis = axis_of(equation, layer)
                if axis is None or (mode.square and equation in (all_reduce_x, all_reduce_y)):
                    continue
                seconds = 0.0
                if grid[axis] > 1:
                    sent = layer
                    if equation in OF_GRADIENTS:
                        sent = _with(layer, layer.m, self._training.reduce(grid, axis))
                    seconds = equation(sent, grid, links)
                spent[equation.__name__, axis] += of_stage * often * seconds
            if mode.square:
                for axis, seconds in panels_s(layer, mode, grid, links, part.gathers).items():
                    spent[PANELS, axis] += of_stage * micros * seconds
        samples = self._sequences / (grid.batch_split * micros)
        for axis, features in self._moved.items():
            of_rank = samples * features * self._training.compute / grid[axis]
            spent[MOVED, axis] += micros * ring_s(Kind.ALL_GATHER, of_rank, grid[axis], links[axis])
        if grid.stages > 1:
            message = samples * max(self._cut(grid.stages).sent(self._network, grid)[1:-1]) * self._training.compute
            spent[MESSAGES, CUTTING_STAGES] = 2 * micros * ring_s(Kind.SEND, message, 2, links[CUTTING_STAGES])
        return dict(spent)

    def _cut(self, stages: int) -> Cut:
        if stages not in self._cuts:
            recomputed = self._training.recomputed_blocks
            self._cuts[stages] = cut_evenly(self._training.model, stages, recomputed=recomputed)
        return self._cuts[stages]


@lru_cache(1024)
def _with(layer: Layer, rows: int, element: int) -> Layer:
    """Return the layer with so many rows, and so many bytes of an element; many grids ask for the same."""
    return replace(layer, m=rows, element=element)


def _last_needed(section: Section) -> int:
    """Find the operation at which recomputation stops: the last product, where nothing comes behind it but the way of
    its features to another axis, and its sum with what the block began with.
    """
    last = len(section.operations) - 1
    while isinstance(section.operations[last], Redistribute | Added):
        last -= 1
    return last if isinstance(section.operations[last], Linear) else len(section.operations)


def _layer(op: Linear, split: tuple[Axis | None, Axis | None], rows: int, element: int) -> Layer:
    window, rows_in = 1, 1.0
    if isinstance(op, Conv2d):
        window = op.kernel**2
        rows_in = op.pixels_in / op.tokens if op.pixels_in and op.tokens else 1.0
    return Layer(rows, op.k, op.n, element, split, window, rows_in, op.reads_data)
