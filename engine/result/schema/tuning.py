"""Results and the tuner's cache keep times of a layer's matrix products in every mode in this form."""

from typing import Literal

from engine.schema import Record

ModeName = Literal["NN", "NT", "TN", "oneDNN"]
RoleName = Literal["forward", "input_gradient", "weight_gradient"]


class ModeTime(Record):
    """It is one way to compute one product: its mode, and whether the weight is stored by columns.

    oneDNN is no layout but another library. own: no operand is copied. Seconds are of one product with its copies: the
    median of the rounds, and their extremes. flops_per_s: 2 m n k by the median. chosen: layers compute so. fastest: it
    is of the ways that were fastest in the first timing, by whatever little. by_round_s: seconds of each round, in
    which all ways took turns; older files have neither of the two.
    """

    role: RoleName
    column_major: bool
    mode: ModeName
    own: bool
    median_s: float
    low_s: float
    high_s: float
    flops_per_s: float
    rounds: int
    chosen: bool
    fastest: bool = False
    by_round_s: tuple[float, ...] = ()


class TunedShape(Record):
    """It is the shape of linear layers with O [m, n] = I [m, k] W [k, n] on one rank.

    layers: how many, and layer, the first. forwards: how often O is computed for each dI and dW. movable: whether the
    weight may be stored by columns. bias: whether O's product adds the bias. accumulates: whether dW's product adds to
    the sum of earlier micro-batches. widened: whether dW comes out in the format of the masters, not in dtype. Older
    files have none of these three, and timed without them. forward, input_gradient, weight_gradient: the modes that
    were chosen; None is the product's own. Seconds of the layer's products in a micro-batch, medians of the rounds:
    own_s as PyTorch does them, chosen_s as chosen, best_s in the ways that were fastest in the first timing. times:
    empty if nothing could be timed.
    """

    m: int
    n: int
    k: int
    dtype: str
    layers: int
    layer: str
    forwards: int
    movable: bool
    bias: bool = False
    accumulates: bool = False
    widened: bool = False
    column_major: bool = False
    forward: ModeName | None = None
    input_gradient: ModeName | None = None
    weight_gradient: ModeName | None = None
    own_s: float | None = None
    chosen_s: float | None = None
    best_s: float | None = None
    times: tuple[ModeTime, ...] = ()


class Tuning(Record):
    """It is what the tuner did: seconds that it took, how many shapes it timed (others were in its cache), and the
    choice.

    again: the same choice in a second timing, independent of the one that it was made by: engine.result.choices judges
    it.
    """

    time_s: float
    timed: int
    shapes: tuple[TunedShape, ...]
    again: tuple[TunedShape, ...] = ()
