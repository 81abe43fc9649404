"""Elementwise parts of networks without parameters: plain for serial networks, and fused for the grid.

The fused ones take fewer passes over memory, and are compiled for GPUs (compiled.py). Shape suffixes: B sequences, N
heads, S positions, D features of a head, P = D / 2 pairs of them, M rows, F features.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.layers.compiled import Compiled, fuses
from engine.layers.linear import Linear


class Rotate(nn.Module):
    """Rotation of neighbouring features of each head as pairs in the plane (Su et al. 2021).

    rotation_2SP: cosine and sine of each position's angles, in float32 or float64. Features beyond the first 2 P stay.
    """

    def forward(self, x_BNSD: Tensor, rotation_2SP: Tensor) -> Tensor:
        turned = 2 * rotation_2SP.shape[2]
        if turned == x_BNSD.shape[3]:
            return self.turn(x_BNSD, rotation_2SP)
        return torch.cat([self.turn(x_BNSD[..., :turned], rotation_2SP), x_BNSD[..., turned:]], dim=3)

    def turn(self, x_BNSD: Tensor, rotation_2SP: Tensor) -> Tensor:
        """Turn all features: D = 2 P."""
        return rotate_pairs(x_BNSD, *rotation_2SP)


def rotate_pairs(x_BNSD: Tensor, cos_SP: Tensor, sin_SP: Tensor) -> Tensor:
    """Turn pairs of features by the angles of these cosines and sines: [B, N, S, D], D = 2 P."""
    even_BNSP, odd_BNSP = x_BNSD.unflatten(3, (-1, 2)).unbind(4)
    both = (even_BNSP * cos_SP - odd_BNSP * sin_SP, even_BNSP * sin_SP + odd_BNSP * cos_SP)
    return torch.stack(both, dim=4).flatten(3).to(x_BNSD.dtype)


class SwiGLU(nn.Module):
    """Map of [..., 2 F], gate and up side by side, to silu(gate) * up [..., F] (Shazeer 2020)."""

    def forward(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up


class AddNorm(nn.Module):
    """Step of a residual stream: x, what is added to it or None, and a norm -> the sum and its norm."""

    def forward(self, x: Tensor, added: Tensor | None, norm: nn.Module) -> tuple[Tensor, Tensor]:
        x = x if added is None else x + added
        return x, norm(x)


class GELU(nn.Module):
    """GELU of a linear layer's output. approximate: none or tanh."""

    def __init__(self, approximate: str) -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, x: Tensor, linear: nn.Module) -> Tensor:
        return F.gelu(linear(x), approximate=self.approximate)


class FusedAddNorm(AddNorm):
    """Sum and norm by the norms of the grid."""

    def forward(self, x: Tensor, added: Tensor | None, norm: nn.Module) -> tuple[Tensor, Tensor]:
        return norm.after(x, added)  # type: ignore[operator]


class FusedGELU(GELU):
    """GELU that, compiled, adds the bias too where ranks have to sum a layer's product first."""

    def forward(self, x: Tensor, linear: nn.Module) -> Tensor:
        if not isinstance(linear, Linear) or linear.bias is None or linear.in_ranks == 1 or not fuses(x):
            return super().forward(x, linear)
        return _BiasGELU.apply(linear.product(x), linear.bias, linear.schedule.cast(linear.bias), self.approximate)


class _BiasGELU(torch.autograd.Function):
    """gelu(x + bias) of x [..., F] and bias [F]. The bias and its gradient are in the master dtype."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias_F: Tensor, cast_F: Tensor, approximate: str) -> Tensor:
        ctx.save_for_backward(x, cast_F)
        ctx.approximate, ctx.dtype = approximate, bias_F.dtype
        return bias_gelu(x, cast_F, approximate)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, cast_F = ctx.saved_tensors
        dx = bias_gelu_gradient(x, cast_F, g, ctx.approximate)
        return dx, dx.flatten(0, -2).sum(dim=0, dtype=ctx.dtype), None, None


def _bias_gelu(x: Tensor, bias_F: Tensor, approximate: str) -> Tensor:
    return F.gelu(x + bias_F, approximate=approximate)


def _bias_gelu_gradient(x: Tensor, bias_F: Tensor, g: Tensor, approximate: str) -> Tensor:
    return torch.ops.aten.gelu_backward(g, x + bias_F, approximate=approximate)


bias_gelu, bias_gelu_gradient = Compiled(_bias_gelu), Compiled(_bias_gelu_gradient)


class FusedRotate(Rotate):
    """Rotation by one product of complex numbers, forward and backward."""

    def turn(self, x_BNSD: Tensor, rotation_2SP: Tensor) -> Tensor:
        if fuses(x_BNSD):
            return _Turn.apply(x_BNSD, rotation_2SP)
        wide_BNSP2 = x_BNSD.to(rotation_2SP.dtype).unflatten(3, (-1, 2))
        turned_BNSP = torch.view_as_complex(wide_BNSP2) * torch.complex(*rotation_2SP)
        return torch.view_as_real(turned_BNSP).flatten(3).to(x_BNSD.dtype)


class _Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BNSD: Tensor, rotation_2SP: Tensor) -> Tensor:
        ctx.save_for_backward(rotation_2SP)
        return turn(x_BNSD, rotation_2SP)

    @staticmethod
    def backward(ctx: Any, g_BNSD: Tensor) -> tuple[Tensor, None]:
        return turn(g_BNSD, *ctx.saved_tensors, back=True), None


def _turn(x_BNSD: Tensor, rotation_2SP: Tensor, *, back: bool = False) -> Tensor:
    cos_SP, sin_SP = rotation_2SP
    return rotate_pairs(x_BNSD, cos_SP, -sin_SP if back else sin_SP)


def _turn_in_one_pass(x_BNSD: Tensor, rotation_2SP: Tensor, *, back: bool = False) -> Tensor:
    """Turn without two halves that have to be put together."""
    cos_SP1, sin_SP1 = rotation_2SP.unsqueeze(3)
    signs_2 = 2 * torch.arange(2, device=x_BNSD.device) - 1
    pairs_BNSP2 = x_BNSD.unflatten(3, (-1, 2))
    both_BNSP2 = pairs_BNSP2 * cos_SP1 + pairs_BNSP2.flip(4) * (sin_SP1 * (-signs_2 if back else signs_2))
    return both_BNSP2.flatten(3).to(x_BNSD.dtype)


turn = Compiled(_turn, _turn_in_one_pass)


class FusedSwiGLU(SwiGLU):
    """SwiGLU whose backward writes both halves of the gradient where they belong."""

    def forward(self, gate_up: Tensor) -> Tensor:
        return _SwiGLU.apply(gate_up)


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        opened, product = swiglu(gate_up)
        ctx.save_for_backward(gate_up, opened)
        return product

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        gate_up, opened = ctx.saved_tensors
        return swiglu_gradient(g, gate_up, opened)


def _swiglu(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    gate, up = gate_up.chunk(2, dim=-1)
    opened = F.silu(gate)
    return opened, opened * up


def _swiglu_gradient(g: Tensor, gate_up: Tensor, opened: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    dgate_up = torch.empty_like(gate_up)
    dgate, dup = dgate_up.chunk(2, dim=-1)
    torch.mul(g, opened, out=dup)
    torch.ops.aten.silu_backward.grad_input(g * up, gate, grad_input=dgate)
    return dgate_up


def _swiglu_gradient_in_one_pass(g: Tensor, gate_up: Tensor, opened: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.cat([torch.ops.aten.silu_backward(g * up, gate), g * opened], dim=-1)


swiglu, swiglu_gradient = Compiled(_swiglu), Compiled(_swiglu_gradient, _swiglu_gradient_in_one_pass)
