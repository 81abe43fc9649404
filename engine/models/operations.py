"""Operations: what a network does with each token, as data, from which parameters, flops and memory follow. No torch.

Features lie on one of two sides, in the residual stream or inside of blocks, and the tensor mode says which axes split
them there. Rows are split over z and data. A product goes from one side to the other:

    projections from the residual stream, and the head    projections onto it

A new operation is a frozen dataclass here, or in a family's folder, and a layer of the grid (engine/parallel).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from engine.grid import Grid
from engine.placement import Constant, Gaussian, Initial, Placement
from engine.tensor_mode import Side, TensorMode

INITIAL_STD = 0.02
"""Standard deviation of GPT-2's initial values. Its biases start at 0, its norms at 1."""
SMALL, ZERO = Gaussian(INITIAL_STD), Constant(0.0)


Sides = tuple[Side | None, Side | None]
FROM_STREAM: Sides = (Side.INNER, Side.STREAM)
"""Sides of n and k of a projection from the residual stream: the normal layer of axonn-sc24."""
ONTO_STREAM: Sides = (Side.STREAM, Side.INNER)
"""Sides of one onto it: the transposed layer."""


class Kept(NamedTuple):
    """Features of each token that are kept for the backward, in the compute dtype."""

    inner: int = 0
    """features inside of blocks"""
    stream: int = 0
    """features that lie as those of the residual stream"""
    streams: int = 0
    """copies of the whole residual stream, as the input of a norm"""
    angles: int = 0
    """numbers in the dtype of statistics, of each position, but not of each sequence of a batch"""

    def times(self, tokens: int) -> "Kept":
        """Return what is kept of some tokens."""
        return Kept(*(tokens * count for count in self))


class Operation:
    """Base class; subclasses override what applies.

    An operation keeps its input and what it makes on the way. Its output counts as the input of the next, so that a
    tensor between two of them counts once.
    """

    __slots__ = ()
    tokens: int | None = None
    """Tokens of a sample that it works on, where these aren't those of its section."""
    parts_in: tuple[int, ...] = ()
    """Parts of the features that it takes, each of which is split on its own; none if all are split as one."""

    def placements(self, prefix: str, mode: TensorMode) -> Iterator[Placement]:
        """Yield the placements of its own parameters, in the model's order. prefix: beginning of their names."""
        yield from ()

    def flops(self, tokens: int) -> int:
        """Count the floating-point operations of the forward pass of tokens of one sample (flops.py)."""
        return 0

    @property
    def kept(self) -> Kept:
        """Features that the engine's layer keeps for the backward."""
        return Kept()

    @property
    def divided_inside(self) -> Mapping[str, int]:
        """Numbers that the axis of inner features has to divide, by their names."""
        return {}

    @property
    def shared_inside(self) -> Mapping[str, int]:
        """Numbers of which each rank of that axis has to have one or more, likewise. Where it doesn't divide them the
        last ranks have fewer.
        """
        return {}


@dataclass(frozen=True, slots=True)
class Table(Operation):
    """Rows of features of the residual stream, looked up by number."""

    name: str
    rows: int
    features: int
    sharded: bool = True
    """Whether an axis splits the rows and z shards them, as of tokens; otherwise both replicate the table."""
    init: Initial = SMALL

    def placements(self, prefix: str, mode: TensorMode) -> Iterator[Placement]:
        name, shape = f"{prefix}{self.name}.weight", (self.rows, self.features)
        if self.sharded:
            yield Placement(name, shape, mode.split(FROM_STREAM, transposed=True), True, self.init)
        else:
            split = (None, mode.stream.features)
            yield Placement(name, shape, split, False, self.init, partial=mode.stream.rows)


@dataclass(frozen=True, slots=True)
class Linear(Operation):
    """Product of k features and a weight of n x k."""

    name: str
    n: int
    k: int
    sides: Sides = FROM_STREAM
    """Where n and k lie; None for what no axis splits."""
    parts: tuple[int, ...] = ()
    """Parts of n, each of which is split on its own, such as query, key and value heads."""
    bias: bool = False
    init: Initial = SMALL
    bias_init: Initial = ZERO
    units: int | None = None
    """Heads, none of which is cut, that are its inner features."""
    tied: str | None = None
    """Table whose weight it has."""
    reads_data: bool = False
    """Whether its input is data, of which no gradient is made."""
    tokens: int | None = None

    def placements(self, prefix: str, mode: TensorMode) -> Iterator[Placement]:
        name, parts = f"{prefix}{self.name}", {0: self.parts} if self.parts else {}
        if self.tied is None:
            yield self._weight(f"{name}.weight", mode)
        if self.bias:
            side, units = self.sides[0], self._units[0]
            partial = mode[side].rows if mode.square and side is not None else ()
            split = (mode.axis(side),)
            yield Placement(
                f"{name}.bias", (self.n,), split, False, self.bias_init, parts, units=units, partial=partial
            )

    def flops(self, tokens: int) -> int:
        return 2 * tokens * self.n * self.k

    def input_tokens(self, output_tokens: int) -> int:
        """Count the tokens that it takes."""
        return output_tokens

    def tile_shape(self, grid: Grid, mode: TensorMode) -> tuple[int, ...]:
        """Return the shape of a rank's tile of its weight."""
        return self._weight("", mode).tile_shape(grid)

    def _weight(self, name: str, mode: TensorMode) -> Placement:
        parts = {0: self.parts} if self.parts else {}
        split = mode.split(self.sides, transposed=mode.by_size and self.n < self.k)
        return Placement(name, (self.n, self.k), split, True, self.init, parts, units=self._units[0] | self._units[1])

    @property
    def _units(self) -> tuple[dict[int, int], dict[int, int]]:
        """Units along n, and along k."""
        n, k = ({dim: self.units} if self.units and self.sides[dim] is Side.INNER else {} for dim in (0, 1))
        return n, k

    @property
    def kept(self) -> Kept:
        return Kept(stream=self.k) if self.sides[1] is Side.STREAM else Kept(inner=self.k)


@dataclass(frozen=True, slots=True)
class Redistribute(Operation):
    """Features from inside of a block become features of the residual stream."""

    features: int

    @property
    def divided_inside(self) -> Mapping[str, int]:
        return {"hidden size": self.features}


@dataclass(frozen=True, slots=True)
class Norm(Operation):
    """Norm of the residual stream; or of each of some heads, which all have the same weight."""

    name: str
    features: int
    kind: str
    """layernorm or rmsnorm"""
    bias: bool = False
    heads: int | None = None
    shares_input: bool = False
    """Whether another norm of the block reads the stream at the same place."""

    def placements(self, prefix: str, mode: TensorMode) -> Iterator[Placement]:
        split, partial = (
            ((mode.stream.features,), mode.stream.rows) if self.heads is None else ((None,), mode.inner.axes)
        )
        for name, value in (("weight", 1.0), *([("bias", 0.0)] if self.bias else [])):
            shape = (self.features,)
            yield Placement(f"{prefix}{self.name}.{name}", shape, split, False, Constant(value), partial=partial)

    @property
    def kept(self) -> Kept:
        if self.heads is not None:  # the engine makes a copy of heads that it norms
            return Kept(inner=self.heads * self.features)
        return Kept() if self.shares_input else Kept(streams=1)


@dataclass(frozen=True, slots=True)
class Rotation(Operation):
    """Rotation of queries and keys by their positions."""

    heads: int
    kv_heads: int
    head_size: int
    turned: int
    """Features of each head that are turned."""

    @property
    def kept(self) -> Kept:
        """Its input, which stays beside the values that attention keeps; queries and keys keep angles each."""
        return Kept(inner=(self.heads + self.kv_heads) * self.head_size, angles=2 * self.turned)


@dataclass(frozen=True, slots=True)
class Attention(Operation):
    """Attention in which each key and value head serves as many query heads as any other."""

    heads: int
    kv_heads: int
    head_size: int
    by_heads: bool = False
    """Whether queries, and the result, come head by head, not token by token as a projection gives them: the next
    projection then keeps a copy.
    """
    causal: bool = True
    tokens: int | None = None

    def flops(self, tokens: int) -> int:
        """Count the causal half that kernels skip, too."""
        return 4 * tokens**2 * self.heads * self.head_size

    @property
    def kept(self) -> Kept:
        kept = self.heads * (2 if self.by_heads else 1) + 2 * self.kv_heads
        return Kept(inner=kept * self.head_size)

    @property
    def shared_inside(self) -> Mapping[str, int]:
        return {"attention heads" if self.kv_heads == self.heads else "key and value heads": self.kv_heads}


@dataclass(frozen=True, slots=True)
class Activation(Operation):
    """Activation function with some features: GELU of as many, SwiGLU of a gate and as many more."""

    kind: Literal["gelu", "swiglu"]
    features: int

    @property
    def kept(self) -> Kept:
        """Its input, and of SwiGLU the gate that it opened."""
        return Kept(inner={"gelu": 1, "swiglu": 3}[self.kind] * self.features)

    @property
    def shared_inside(self) -> Mapping[str, int]:
        return {"feed-forward's features": self.features}
