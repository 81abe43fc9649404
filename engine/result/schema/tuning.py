"""Times of a layer's matrix products in every mode, in results and in the tuner's cache."""

from typing import Literal

from engine.schema import Record

ModeName = Literal["NN", "NT", "TN", "oneDNN"]
"""Layout of both factors in memory, or another library."""
RoleName = Literal["forward", "input_gradient", "weight_gradient"]


class ModeTime(Record):
    """One way to compute one product. Seconds are of a product with its copies, over the rounds."""

    role: RoleName
    column_major: bool
    """Whether the weight is stored by columns."""
    mode: ModeName
    own: bool
    """Whether no operand is copied."""
    median_s: float
    low_s: float
    high_s: float
    flops_per_s: float
    """2 m n k by the median."""
    rounds: int
    chosen: bool
    fastest: bool = False
    """Whether it is of the ways that were fastest in the first timing, by whatever little; not in older files."""
    by_round_s: tuple[float, ...] = ()
    """Seconds of each round, in which all ways took turns; not in older files."""


class TunedShape(Record):
    """Shape of linear layers with O [m, n] = I [m, k] W [k, n] on one rank.

    Seconds are those of the layer's products in a micro-batch, medians of the rounds.
    """

    m: int
    n: int
    k: int
    dtype: str
    layers: int
    layer: str
    """The first of the layers."""
    forwards: int
    """How often O is computed for each dI and dW."""
    movable: bool
    """Whether the weight may be stored by columns."""
    bias: bool = False
    """Whether O's product adds the bias; older files timed without it, as without the next two."""
    accumulates: bool = False
    """Whether dW's product adds to the sum of earlier micro-batches."""
    widened: bool = False
    """Whether dW comes out in the format of the masters, not in dtype."""
    column_major: bool = False
    forward: ModeName | None = None
    """Chosen mode, as the next two; None is the product's own."""
    input_gradient: ModeName | None = None
    weight_gradient: ModeName | None = None
    own_s: float | None = None
    """Time in PyTorch's own ways."""
    chosen_s: float | None = None
    best_s: float | None = None
    """Time in the ways that were fastest in the first timing."""
    times: tuple[ModeTime, ...] = ()
    """None if nothing could be timed."""


class Tuning(Record):
    """Work of the tuner."""

    time_s: float
    timed: int
    """Shapes that it timed; others were in its cache."""
    shapes: tuple[TunedShape, ...]
    again: tuple[TunedShape, ...] = ()
    """The same choice in a second, independent timing, by which engine.result.judges.choices judges it."""
