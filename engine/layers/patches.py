"""Patches are squares of an image, each projected to features of the residual stream.

On the grid it is a transposed linear layer, k = C p p: all ranks of a plane read the same images, so each takes its own
part of a patch's pixels, and nothing has to move.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from engine.layers.linear import Linear


def patches(pixels_BCHW: Tensor, side: int) -> Tensor:
    """Cut [B, C, H, W] into squares: [B, N, C p p], row by row, a square's channels one after another."""
    squares = pixels_BCHW.unflatten(3, (-1, side)).unflatten(2, (-1, side))  # [B, C, H / p, p, W / p, p]
    return squares.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


class Patches(nn.Linear):
    """It maps pixels [B, C, H, W] of any precision to [B, N, h]. side: of a square."""

    def __init__(self, channels: int, side: int, features: int) -> None:
        super().__init__(channels * side**2, features)
        self.side = side

    def forward(self, pixels_BCHW: Tensor) -> Tensor:
        return F.linear(patches(pixels_BCHW, self.side).to(self.weight.dtype), self.weight, self.bias)


class PatchesOnGrid(Linear):
    """It maps [B, C, H, W] to [B, N, h / Gy] on the grid."""

    side: int
    """It is the side of a square, in pixels."""

    def forward(self, pixels_BCHW: Tensor) -> Tensor:
        """Take this rank's part of each square, then project."""
        cut_BNK = patches(pixels_BCHW, self.side)
        assert self.in_axis is not None
        own = cut_BNK.chunk(self.in_ranks, dim=2)[self.comm.coords[self.in_axis]]
        return super().forward(own.to(self.schedule.compute_dtype).contiguous())
