"""Operations are what a network does with each token, as data: sizes, from which parameters, flops and memory follow.
No torch in it.

The residual stream is split over y (features) and over z and data (rows), and is the same on all of x. In between,
features are split over x and are the same on all of y:

    projections from the residual stream, the head, the token table: normal       projections onto it: transposed

A new operation is a frozen dataclass here, or in a family's folder, and a layer of the grid (engine/parallel).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from engine.grid import STREAM, Axis, Grid
from engine.placement import NORMAL, Constant, Gaussian, Initial, Placement

INITIAL_STD = 0.02
"""GPT-2's initial values have this standard deviation. Its biases start at 0, its norms at 1."""
SMALL, ZERO = Gaussian(INITIAL_STD), Constant(0.0)
VOCABULARY = "vocabulary"


class Kept(NamedTuple):
    """It counts what is kept of each token for the backward: features in the compute dtype.

    over_inner, over_stream: those that the axis INNER or STREAM splits. streams: how often the whole residual stream is
    kept, as the input of a norm. angles: numbers in the dtype of statistics, of each position, but not of each sequence
    of a batch.
    """

    over_inner: int = 0
    over_stream: int = 0
    streams: int = 0
    angles: int = 0

    def of(self, tokens: int) -> "Kept":
        """Count what is kept of so many."""
        return Kept(*(tokens * count for count in self))


class Operation:
    """It is the base of all operations, each of which overrides what it has.

    It keeps its input and what it makes on the way. Its output counts as the input of the next, so that a
    tensor between two of them counts once.
    """

    __slots__ = ()
    tokens: int | None = None
    """It works on so many tokens of a sample, where these aren't those of its section."""
    parts_in: tuple[int, ...] = ()
    """Of the features that it takes each of these parts is split on its own; none if all are split as one."""

    def placements(self, prefix: str) -> Iterator[Placement]:
        """Give the placements of its own parameters, in the model's order. prefix: what their names begin with."""
        yield from ()

    def flops(self, tokens: int) -> int:
        """Count the floating-point operations of the forward pass of so many tokens of one sample (flops.py)."""
        return 0

    @property
    def kept(self) -> Kept:
        """Count what the engine's layer keeps for the backward."""
        return Kept()

    @property
    def divided_by_inner(self) -> Mapping[str, int]:
        """Count what the axis INNER has to divide, by what it is called."""
        return {}


@dataclass(frozen=True, slots=True)
class Table(Operation):
    """It is rows of features of the residual stream, looked up by number.

    sharded: whether it is split over x and sharded over z, as that of tokens; otherwise x and z replicate it.
    """

    name: str
    rows: int
    features: int
    sharded: bool = True
    init: Initial = SMALL

    def placements(self, prefix: str) -> Iterator[Placement]:
        split = NORMAL if self.sharded else (None, STREAM)
        shape = (self.rows, self.features)
        yield Placement(f"{prefix}{self.name}.weight", shape, split, self.sharded, self.init)

    @property
    def divided_by_inner(self) -> Mapping[str, int]:
        """Count the rows, by which a table of tokens is split."""
        return {VOCABULARY: self.rows} if self.sharded else {}


@dataclass(frozen=True, slots=True)
class Linear(Operation):
    """It is the product of k features and a weight of n x k.

    split: NORMAL from the residual stream, TRANSPOSED onto it, or None for what no axis splits. parts: of n, each of
    which is split on its own, such as query, key and value heads. tied: the table whose weight it has. outputs: what
    its n are called where they are what the network gives. reads_data: whether its input is data, of which no gradient
    is made.
    """

    name: str
    n: int
    k: int
    split: tuple[Axis | None, Axis | None] = NORMAL
    parts: tuple[int, ...] = ()
    bias: bool = False
    init: Initial = SMALL
    bias_init: Initial = ZERO
    tied: str | None = None
    outputs: str | None = None
    reads_data: bool = False
    tokens: int | None = None

    def placements(self, prefix: str) -> Iterator[Placement]:
        name, parts = f"{prefix}{self.name}", {0: self.parts} if self.parts else {}
        if self.tied is None:
            yield Placement(f"{name}.weight", (self.n, self.k), self.split, True, self.init, parts)
        if self.bias:
            yield Placement(f"{name}.bias", (self.n,), self.split[:1], False, self.bias_init, parts)

    def flops(self, tokens: int) -> int:
        return 2 * tokens * self.n * self.k

    def taken(self, tokens: int) -> int:
        """Count the tokens that it takes where it gives so many."""
        return tokens

    def ranks(self, grid: Grid) -> tuple[int, int]:
        """Count the ranks that split n, and those that split k."""
        n, k = (1 if axis is None else grid[axis] for axis in self.split)
        return n, k

    @property
    def kept(self) -> Kept:
        return Kept(over_stream=self.k) if self.split[1] is STREAM else Kept(over_inner=self.k)

    @property
    def divided_by_inner(self) -> Mapping[str, int]:
        return {self.outputs: self.n} if self.outputs else {}


@dataclass(frozen=True, slots=True)
class Redistribute(Operation):
    """The features that x splits become features of the residual stream, which y splits."""

    features: int


@dataclass(frozen=True, slots=True)
class Norm(Operation):
    """It is a norm of the residual stream; or of each of some heads, which all have the same weight.

    kind: layernorm or rmsnorm. shares_input: whether another norm of the block reads the stream at the same place.
    """

    name: str
    features: int
    kind: str
    bias: bool = False
    heads: int | None = None
    shares_input: bool = False

    def placements(self, prefix: str) -> Iterator[Placement]:
        split = (STREAM,) if self.heads is None else (None,)
        yield Placement(f"{prefix}{self.name}.weight", (self.features,), split, False, Constant(1.0))
        if self.bias:
            yield Placement(f"{prefix}{self.name}.bias", (self.features,), split, False, Constant(0.0))

    @property
    def kept(self) -> Kept:
        """Count the copy that the engine makes of heads that it norms."""
        if self.heads is not None:
            return Kept(over_inner=self.heads * self.features)
        return Kept() if self.shares_input else Kept(streams=1)


@dataclass(frozen=True, slots=True)
class Rotation(Operation):
    """It turns queries and keys by their positions. turned: how many features of each head they turn."""

    heads: int
    kv_heads: int
    head_size: int
    turned: int

    @property
    def kept(self) -> Kept:
        """Count the input, which stays beside the values that attention keeps; queries and keys keep angles each."""
        return Kept(over_inner=(self.heads + self.kv_heads) * self.head_size, angles=2 * self.turned)


@dataclass(frozen=True, slots=True)
class Attention(Operation):
    """It is attention in which each key and value head serves as many query heads as any other.

    causal: whether a token takes none that come after it. by_heads: whether queries come head by head, not token by
    token as a projection gives them. So does the result, of which the next projection then keeps a copy.
    """

    heads: int
    kv_heads: int
    head_size: int
    by_heads: bool = False
    causal: bool = True
    tokens: int | None = None

    def flops(self, tokens: int) -> int:
        """Count the causal half that kernels skip, too."""
        return 4 * tokens**2 * self.heads * self.head_size

    @property
    def kept(self) -> Kept:
        kept = self.heads * (2 if self.by_heads else 1) + 2 * self.kv_heads
        return Kept(over_inner=kept * self.head_size)

    @property
    def divided_by_inner(self) -> Mapping[str, int]:
        """Count key and value heads, of which query heads are a multiple."""
        return {"attention heads" if self.kv_heads == self.heads else "key and value heads": self.kv_heads}


_KEPT = {"gelu": 1, "swiglu": 3}
"""An activation function keeps so many times its outputs: its input, and of SwiGLU the gate that it opened."""
_IN_BACKWARD = {"gelu": 1 + 2, "swiglu": 3 + 4}
"""So many times its outputs are there in its backward: that, the gradients of output and input, and of SwiGLU a
product on the way.
"""


@dataclass(frozen=True, slots=True)
class Activation(Operation):
    """It is an activation function with so many features: GELU of as many, SwiGLU of a gate and as many more."""

    kind: Literal["gelu", "swiglu"]
    features: int

    @property
    def kept(self) -> Kept:
        return Kept(over_inner=_KEPT[self.kind] * self.features)

    @property
    def in_backward(self) -> int:
        """Count the features that are there in the backward, kept or not."""
        return _IN_BACKWARD[self.kind] * self.features

    @property
    def divided_by_inner(self) -> Mapping[str, int]:
        return {"feed-forward's features": self.features}
