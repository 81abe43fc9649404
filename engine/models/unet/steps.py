"""A U-Net goes in steps: residual blocks with or without attention, and what halves and doubles images. No torch."""

from dataclasses import dataclass
from typing import Literal

GROUPS = 32
"""Each norm has so many groups of channels."""
Resampling = Literal["half", "double"]


@dataclass(frozen=True, slots=True)
class Step:
    """It maps a stream of channels_in to channels, at images of that side.

    takes: so many channels that an earlier step has left come behind those of the stream; 0 if none. leaves: whether
    it leaves its input for a later step, too. attends: whether its pixels attend to one another at the end.
    resampling: what it does to the images, if anything; convolves: by a convolution alone, not in a residual block.
    """

    channels_in: int
    channels: int
    side: int
    attends: bool = False
    takes: int = 0
    leaves: bool = False
    resampling: Resampling | None = None
    convolves: bool = False

    @property
    def joined(self) -> int:
        """Count the channels that it works on."""
        return self.channels_in + self.takes

    @property
    def parts(self) -> tuple[int, ...]:
        """Give the parts of these, where they are of two."""
        return (self.channels_in, self.takes) if self.takes else ()

    @property
    def side_out(self) -> int:
        """Give the side of the images that it makes."""
        by = {None: (1, 1), "half": (1, 2), "double": (2, 1)}[self.resampling]
        return self.side * by[0] // by[1]
