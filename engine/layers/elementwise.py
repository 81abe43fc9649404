"""These parts of networks have no parameters of their own; serial networks run them as they are here, plain.

On the grid others stand in their place, which take fewer passes over memory (fused.py).

Shape suffixes: B sequences, N heads, S positions, D features of a head, P = D / 2 pairs of them, F features.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Rotate(nn.Module):
    """It turns neighbouring features of each head as pairs in the plane (Su et al. 2021).

    rotation_2SP: cosine and sine of each position's angles, in float32 or float64. Features beyond the first 2 P stay.
    """

    def forward(self, x_BNSD: Tensor, rotation_2SP: Tensor) -> Tensor:
        """Turn; shape and dtype stay."""
        turned = 2 * rotation_2SP.shape[2]
        if turned == x_BNSD.shape[3]:
            return self.turn(x_BNSD, rotation_2SP)
        return torch.cat([self.turn(x_BNSD[..., :turned], rotation_2SP), x_BNSD[..., turned:]], dim=3)

    def turn(self, x_BNSD: Tensor, rotation_2SP: Tensor) -> Tensor:
        """Turn all features: D = 2 P."""
        return turned(x_BNSD, *rotation_2SP)


def turned(x_BNSD: Tensor, cos_SP: Tensor, sin_SP: Tensor) -> Tensor:
    """Turn pairs of features by the angles of these cosines and sines: [B, N, S, D], D = 2 P."""
    even_BNSP, odd_BNSP = x_BNSD.unflatten(3, (-1, 2)).unbind(4)
    both = (even_BNSP * cos_SP - odd_BNSP * sin_SP, even_BNSP * sin_SP + odd_BNSP * cos_SP)
    return torch.stack(both, dim=4).flatten(3).to(x_BNSD.dtype)


class SwiGLU(nn.Module):
    """It maps [..., 2 F], gate and up side by side, to silu(gate) * up [..., F] (Shazeer 2020)."""

    def forward(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up


class AddNorm(nn.Module):
    """A block reads a residual stream so: x, what is added to it or None, and a norm -> the sum and its norm."""

    def forward(self, x: Tensor, added: Tensor | None, norm: nn.Module) -> tuple[Tensor, Tensor]:
        x = x if added is None else x + added
        return x, norm(x)


class GELU(nn.Module):
    """It is GELU of what a linear layer gives. approximate: none or tanh."""

    def __init__(self, approximate: str) -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, x: Tensor, linear: nn.Module) -> Tensor:
        """Map [..., K] to [..., N]."""
        return F.gelu(linear(x), approximate=self.approximate)
