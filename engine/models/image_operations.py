"""Operations of networks that work on images, whose pixels are their tokens. No torch in it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from engine.grid import INNER, STREAM, Axis
from engine.models.operations import Kept, Linear, Operation
from engine.placement import Constant, Placement


@dataclass(frozen=True, slots=True)
class Conv2d(Linear):
    """It is a convolution of k channels to n; its tokens are the pixels that it gives.

    kernel: pixels along a side of what it sees at once. parts_in: of k, each of which is split on its own.
    pixels_in: those that it takes, where they are others.
    """

    kernel: int = 3
    parts_in: tuple[int, ...] = ()
    pixels_in: int | None = None

    def placements(self, prefix: str) -> Iterator[Placement]:
        name, shape = f"{prefix}{self.name}", (self.n, self.k, self.kernel, self.kernel)
        parts = {dim: sizes for dim, sizes in ((0, self.parts), (1, self.parts_in)) if sizes}
        of_bias = {0: self.parts} if self.parts else {}
        yield Placement(f"{name}.weight", shape, (*self.split, None, None), True, self.init, parts)
        if self.bias:
            yield Placement(f"{name}.bias", (self.n,), self.split[:1], False, self.bias_init, of_bias)

    def flops(self, tokens: int) -> int:
        return 2 * tokens * self.n * self.k * self.kernel**2

    @property
    def divided_by_inner(self) -> Mapping[str, int]:
        sizes = [size for size, axis in zip((self.n, self.k), self.split, strict=True) if axis is INNER]
        return {"channels": sizes[0]} if sizes else {}


@dataclass(frozen=True, slots=True)
class GroupNorm(Operation):
    """It is a norm of groups of channels, and a SiLU behind it, if any. split: the axis of its channels, whose parts
    are split on their own. scaled: whether each sample brings factors and shifts of its own.
    """

    name: str
    features: int
    split: Axis = STREAM
    parts: tuple[int, ...] = ()
    scaled: bool = False
    silu: bool = True
    tokens: int | None = None

    def placements(self, prefix: str) -> Iterator[Placement]:
        parts = {0: self.parts} if self.parts else {}
        for name, value in (("weight", 1.0), ("bias", 0.0)):
            yield Placement(
                f"{prefix}{self.name}.{name}", (self.features,), (self.split,), False, Constant(value), parts
            )

    @property
    def kept(self) -> Kept:
        """Count its input, and that of the SiLU."""
        kept = self.features * (1 + self.silu)
        return Kept(over_stream=kept) if self.split is STREAM else Kept(over_inner=kept)
