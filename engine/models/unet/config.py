"""Describe a U-Net by its shape (Nichol and Dhariwal 2021; Dhariwal and Nichol 2021). No torch in it."""

from dataclasses import dataclass
from typing import Literal

from engine.data.colours import CHANNELS
from engine.errors import UsageError

GROUPS = 32
"""Each norm has so many groups of channels."""


@dataclass(frozen=True, slots=True)
class UNetConfig:
    """It has a level for each multiplier, whose images have half the side of those of the level before.

    The defaults are what guided-diffusion makes of images of 32 x 32 pixels. improved-diffusion's own U-Net for these
    has four heads, resamples by convolutions, and gives six outputs.
    """

    name: str
    base: int
    """channels that multipliers are of"""
    multipliers: tuple[int, ...] = (1, 2, 2, 2)
    """of each level's channels, from the largest images to the smallest"""
    blocks: int = 3
    """residual blocks of a level on the way down; there is one more on the way up"""
    attention: tuple[int, ...] = (16, 8)
    """sides, in pixels, at which pixels attend to one another; those in the middle always do"""
    head_channels: int = 64
    """channels of a head of attention; of no account if heads are given"""
    heads: int | None = None
    """heads of attention, the same number at each level"""
    resampling: Literal["block", "convolution"] = "block"
    """whether a residual block or a convolution halves and doubles images"""
    image: int = 32
    """pixels along a side of what it takes"""
    outputs: int = CHANNELS
    """channels of what it gives: the noise's, and those of its variance where that is learned, too"""

    def __post_init__(self) -> None:
        smallest = 2 ** (len(self.multipliers) - 1)
        if self.image % smallest:
            raise UsageError(
                f"A U-Net of {len(self.multipliers)} levels halves an image's side to 1/{smallest}, but {self.image} "
                f"is not a multiple of {smallest}: {smallest * (self.image // smallest + 1)} would be."
            )
        if self.base % GROUPS:
            raise UsageError(
                f"A U-Net's norms have {GROUPS} groups, so its base must be a multiple of {GROUPS}, but {self.base} is "
                f"not: {GROUPS * (self.base // GROUPS + 1)} would be."
            )
        if unknown := set(self.attention) - set(self.sides):
            raise UsageError(
                f"No level of the U-Net has images of side {min(unknown)}, at which its pixels shall attend: take some "
                f"of {', '.join(str(side) for side in self.sides)}."
            )
        for channels in self.attending:
            if channels % (self.heads or self.head_channels):
                parts = f"{self.heads} heads" if self.heads else f"heads of {self.head_channels} channels"
                raise UsageError(f"The U-Net attends on {channels} channels, which {parts} don't divide: take others.")

    @property
    def sides(self) -> tuple[int, ...]:
        """Give the pixels along a side of each level's images."""
        return tuple(self.image // 2**level for level in range(len(self.multipliers)))

    @property
    def channels(self) -> tuple[int, ...]:
        """Give the channels of each level."""
        return tuple(multiplier * self.base for multiplier in self.multipliers)

    @property
    def attending(self) -> tuple[int, ...]:
        """Give the channels of each level that attends, and last of the middle."""
        levels = zip(self.channels, self.sides, strict=True)
        return (*(channels for channels, side in levels if side in self.attention), self.channels[-1])

    def head_size(self, channels: int) -> int:
        """Give the channels of a head where the stream has so many."""
        return channels // self.heads if self.heads else self.head_channels
