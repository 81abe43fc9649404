"""Operations of networks that work on images, whose pixels are their tokens. No torch in it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from engine.grid import INNER, STREAM, Axis, Grid
from engine.models.network import Network
from engine.models.operations import Kept, Linear, Operation
from engine.placement import Constant, Placement


@dataclass(frozen=True, slots=True)
class Conv2d(Linear):
    """It is a convolution of k channels to n; its tokens are the pixels that it gives.

    kernel: pixels along a side of what it sees at once. pixels_in: those that it takes, where they are others. joins:
    whether what it gives is a part of the residual stream, which the next transformed one adds to its own: INNER splits
    n within the slices of STREAM. shares_input: whether a norm of the block keeps its input, too.
    """

    kernel: int = 3
    parts_in: tuple[int, ...] = ()
    pixels_in: int | None = None
    joins: bool = False
    shares_input: bool = False

    def placements(self, prefix: str) -> Iterator[Placement]:
        name, shape = f"{prefix}{self.name}", (self.n, self.k, self.kernel, self.kernel)
        parts = {dim: sizes for dim, sizes in ((0, self.parts), (1, self.parts_in)) if sizes}
        of_bias = {0: self.parts} if self.parts else {}
        sliced = {0: STREAM} if self.joins else {}
        yield Placement(f"{name}.weight", shape, (*self.split, None, None), True, self.init, parts, sliced=sliced)
        if self.bias:
            yield Placement(f"{name}.bias", (self.n,), self.split[:1], False, self.bias_init, of_bias, sliced=sliced)

    def taken(self, tokens: int) -> int:
        """Count the pixels that it takes."""
        return self.pixels_in or tokens

    def flops(self, tokens: int) -> int:
        return 2 * tokens * self.n * self.k * self.kernel**2

    @property
    def kept(self) -> Kept:
        """Count what it takes, by pixels that it gives."""
        if self.shares_input:
            return Kept()
        taken = self.k * (self.taken(self.tokens) // self.tokens if self.tokens else 1)
        return Kept(over_stream=taken) if self.split[1] is STREAM else Kept(over_inner=taken)

    @property
    def divided_by_inner(self) -> Mapping[str, int]:
        sizes = [size for size, axis in zip((self.n, self.k), self.split, strict=True) if axis is INNER]
        return {"channels": sizes[0]} if sizes else {}


@dataclass(frozen=True, slots=True)
class GroupNorm(Operation):
    """It is a norm of so many groups of channels, and a SiLU behind it, if any. split: the axis of its channels."""

    name: str
    features: int
    groups: int
    split: Axis = STREAM
    parts_in: tuple[int, ...] = ()
    silu: bool = True
    tokens: int | None = None

    def placements(self, prefix: str) -> Iterator[Placement]:
        parts = {0: self.parts_in} if self.parts_in else {}
        for name, value in (("weight", 1.0), ("bias", 0.0)):
            yield Placement(
                f"{prefix}{self.name}.{name}", (self.features,), (self.split,), False, Constant(value), parts
            )

    def whole(self, grid: Grid) -> bool:
        """Say whether each group is on one rank. The grid needn't divide the channels."""
        ranks, of_group = grid[self.split], self.features // self.groups
        return ranks == 1 or all(part % (ranks * of_group) == 0 for part in self.parts_in or (self.features,))

    @property
    def kept(self) -> Kept:
        """Count its input, and that of the SiLU."""
        kept = self.features * (1 + self.silu)
        return Kept(over_stream=kept) if self.split is STREAM else Kept(over_inner=kept)


@dataclass(frozen=True, slots=True)
class Resample(Operation):
    """It halves or doubles images, whose pixels it takes. What it halves it keeps."""

    features: int
    halves: bool
    tokens: int | None = None

    @property
    def kept(self) -> Kept:
        return Kept(over_stream=self.features if self.halves else 0)


@dataclass(frozen=True, slots=True)
class Added(Operation):
    """It adds to a branch what that began with, of so many channels. multiplied: whether a product of it."""

    features: int
    multiplied: bool = False
    tokens: int | None = None


def norms_that_share(network: Network, grid: Grid) -> tuple[int, int]:
    """Count the norms some of whose groups lie on several ranks, which share their statistics, and all norms of groups.

    >>> from engine.models.unet.config import UNetConfig
    >>> network = UNetConfig("unet-50m", base=128).network()
    >>> norms_that_share(network, Grid(y=2)), norms_that_share(network, Grid(x=4))
    ((2, 88), (0, 88))
    """
    norms = [norm for section in network.sections for norm in section.of_kind(GroupNorm)]
    return sum(not norm.whole(grid) for norm in norms), len(norms)
