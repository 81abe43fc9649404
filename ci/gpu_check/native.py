"""PyTorch takes an addition and a kernel for a sum and its norm, which the compiled functions have to beat."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Rival = Callable[..., Callable[[], Any]]
"""Makes a call of a compiled function's arguments that does with them what the function does."""
Norm = Callable[..., Tensor]


def layer_norm(x_MH: Tensor, weight_H: Tensor, bias_H: Tensor, eps: float = 1e-5) -> Tensor:
    return F.layer_norm(x_MH, weight_H.shape, weight_H, bias_H, eps)


def rms_norm(x_MH: Tensor, weight_H: Tensor, eps: float = 1e-5) -> Tensor:
    return F.rms_norm(x_MH, weight_H.shape, weight_H, eps)


def sum_and(norm: Norm, *parameters_H: Tensor) -> Rival:
    """Return the rival that makes (sum, norm) of (x, added, ...). The parameters are cast once, as in a step."""
    cast = [parameter.bfloat16() for parameter in parameters_H]

    def of(x_MH: Tensor, added_MH: Tensor, *_: object) -> Callable[[], tuple[Tensor, Tensor]]:
        def call() -> tuple[Tensor, Tensor]:
            sum_MH = x_MH + added_MH
            return sum_MH, norm(sum_MH, *cast)

        return call

    return of


def gradients_of(norm: Norm, *parameters_H: Tensor) -> Rival:
    """Make a rival of the gradients of x and the parameters of (g, x, ..., dsum); dsum is added to the first."""

    def of(g_MH: Tensor, x_MH: Tensor, *others: Tensor) -> Callable[[], tuple[Tensor, ...]]:
        leaves = [x_MH.detach().requires_grad_(), *(one.bfloat16().requires_grad_() for one in parameters_H)]
        normal_MH, dsum_MH = norm(*leaves), others[-1]

        def call() -> tuple[Tensor, ...]:
            dx_MH, *parameters = torch.autograd.grad(normal_MH, leaves, g_MH, retain_graph=True)
            return dx_MH + dsum_MH, *parameters

        return call

    return of
