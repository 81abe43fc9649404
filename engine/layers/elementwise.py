"""Element-wise parts of networks: plain, as serial networks have them, and in fewer passes over memory, for the grid.

Shape suffixes: B sequences, N heads, S positions, D features of a head, P = D / 2 pairs of them, F features.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Rotate(nn.Module):
    """Turns neighbouring features of each head as pairs in the plane (Su et al. 2021).

    rotation_2SP: cosine and sine of each position's angles, in float32 or float64. Features beyond the first 2 P stay.
    """

    def forward(self, x_BNSD: Tensor, rotation_2SP: Tensor) -> Tensor:
        """The same shape and dtype."""
        turned = 2 * rotation_2SP.shape[2]
        if turned == x_BNSD.shape[3]:
            return self.turn(x_BNSD, rotation_2SP)
        return torch.cat([self.turn(x_BNSD[..., :turned], rotation_2SP), x_BNSD[..., turned:]], dim=3)

    def turn(self, x_BNSD: Tensor, rotation_2SP: Tensor) -> Tensor:
        """Of all features: D = 2 P."""
        cos_SP, sin_SP = rotation_2SP
        even_BNSP, odd_BNSP = x_BNSD.unflatten(3, (-1, 2)).unbind(4)
        turned = (even_BNSP * cos_SP - odd_BNSP * sin_SP, even_BNSP * sin_SP + odd_BNSP * cos_SP)
        return torch.stack(turned, dim=4).flatten(3).to(x_BNSD.dtype)


class FusedRotate(Rotate):
    """The same as one product of complex numbers, forward and backward."""

    def turn(self, x_BNSD: Tensor, rotation_2SP: Tensor) -> Tensor:
        """Of all features: D = 2 P."""
        wide_BNSP2 = x_BNSD.to(rotation_2SP.dtype).unflatten(3, (-1, 2))
        turned_BNSP = torch.view_as_complex(wide_BNSP2) * torch.complex(*rotation_2SP)
        return torch.view_as_real(turned_BNSP).flatten(3).to(x_BNSD.dtype)


class SwiGLU(nn.Module):
    """[..., 2 F], gate and up side by side, to silu(gate) * up [..., F] (Shazeer 2020)."""

    def forward(self, gate_up: Tensor) -> Tensor:
        """Gate."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up


class FusedSwiGLU(SwiGLU):
    """The same, whose backward writes both halves of the gradient where they belong."""

    def forward(self, gate_up: Tensor) -> Tensor:
        """Gate."""
        return _SwiGLU.apply(gate_up)


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate_up: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        gate, up = gate_up.chunk(2, dim=-1)
        opened = F.silu(gate)
        ctx.save_for_backward(gate_up, opened)
        return opened * up

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        gate_up, opened = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        dgate_up = torch.empty_like(gate_up)
        dgate, dup = dgate_up.chunk(2, dim=-1)
        torch.mul(g, opened, out=dup)
        torch.ops.aten.silu_backward.grad_input(g * up, gate, grad_input=dgate)
        return dgate_up
