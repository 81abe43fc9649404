"""Operations of networks that work on images, whose pixels are their tokens. No torch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from engine.grid import Grid
from engine.models.network import Network
from engine.models.operations import Kept, Linear, Operation
from engine.placement import Constant, Placement
from engine.tensor_mode import Side, TensorMode


@dataclass(frozen=True, slots=True)
class Conv2d(Linear):
    """Convolution of k channels to n; its tokens are the pixels that it gives."""

    kernel: int = 3
    """Pixels along a side of what it sees at once."""
    parts_in: tuple[int, ...] = ()
    pixels_in: int | None = None
    """Pixels that it takes, where they are others."""
    joins: bool = False
    """Whether what it gives is a part of the residual stream, which the next one onto it adds to its own: the axis of
    inner features splits n within the slices of the stream's.
    """
    shares_input: bool = False
    """Whether a norm of the block keeps its input, too."""

    def placements(self, prefix: str, mode: TensorMode) -> Iterator[Placement]:
        name, shape = f"{prefix}{self.name}", (self.n, self.k, self.kernel, self.kernel)
        split = mode.split(self.sides)
        parts = {dim: sizes for dim, sizes in ((0, self.parts), (1, self.parts_in)) if sizes}
        of_bias = {0: self.parts} if self.parts else {}
        sliced = {0: mode.stream.features} if self.joins else {}
        yield Placement(f"{name}.weight", shape, (*split, None, None), True, self.init, parts, sliced=sliced)
        if self.bias:
            yield Placement(f"{name}.bias", (self.n,), split[:1], False, self.bias_init, of_bias, sliced=sliced)

    def input_tokens(self, output_tokens: int) -> int:
        return self.pixels_in or output_tokens

    def flops(self, tokens: int) -> int:
        return 2 * tokens * self.n * self.k * self.kernel**2

    @property
    def kept(self) -> Kept:
        """Channels that it takes, of each pixel that it gives."""
        if self.shares_input:
            return Kept()
        inputs = self.k * (self.input_tokens(self.tokens) // self.tokens if self.tokens else 1)
        return Kept(stream=inputs) if self.sides[1] is Side.STREAM else Kept(inner=inputs)

    @property
    def divided_inside(self) -> Mapping[str, int]:
        sizes = [size for size, side in zip((self.n, self.k), self.sides, strict=True) if side is Side.INNER]
        return {"channels": sizes[0]} if sizes else {}


@dataclass(frozen=True, slots=True)
class GroupNorm(Operation):
    """Norm of groups of channels, and a SiLU behind it, if any."""

    name: str
    features: int
    groups: int
    side: Side = Side.STREAM
    """Where its channels lie."""
    parts_in: tuple[int, ...] = ()
    silu: bool = True
    tokens: int | None = None

    def placements(self, prefix: str, mode: TensorMode) -> Iterator[Placement]:
        parts = {0: self.parts_in} if self.parts_in else {}
        split = (mode.axis(self.side),)
        for name, value in (("weight", 1.0), ("bias", 0.0)):
            yield Placement(f"{prefix}{self.name}.{name}", (self.features,), split, False, Constant(value), parts)

    def whole(self, grid: Grid, mode: TensorMode) -> bool:
        """Return whether each group is on one rank. The grid needn't divide the channels."""
        ranks, of_group = grid[mode[self.side].features], self.features // self.groups
        return ranks == 1 or all(part % (ranks * of_group) == 0 for part in self.parts_in or (self.features,))

    @property
    def kept(self) -> Kept:
        """Its input, and that of the SiLU."""
        kept = self.features * (1 + self.silu)
        return Kept(stream=kept) if self.side is Side.STREAM else Kept(inner=kept)


@dataclass(frozen=True, slots=True)
class Resample(Operation):
    """Halving or doubling of images, whose pixels are its tokens. It keeps what it halves."""

    features: int
    halves: bool
    tokens: int | None = None

    @property
    def kept(self) -> Kept:
        return Kept(stream=self.features if self.halves else 0)


@dataclass(frozen=True, slots=True)
class Added(Operation):
    """Sum of a branch and what it began with."""

    features: int
    multiplied: bool = False
    """Whether a product of what it began with is added."""
    tokens: int | None = None


def norms_that_share(network: Network, grid: Grid) -> tuple[int, int]:
    """Count the norms some of whose groups lie on several ranks, which share their statistics, and all norms of groups.

    >>> from engine.models.unet.config import UNetConfig
    >>> network = UNetConfig("unet-50m", base=128).network()
    >>> norms_that_share(network, Grid(y=2)), norms_that_share(network, Grid(x=4))
    ((2, 88), (0, 88))
    """
    norms = [norm for section in network.sections for norm in section.of_kind(GroupNorm)]
    return sum(not norm.whole(grid, network.mode) for norm in norms), len(norms)
