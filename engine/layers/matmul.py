"""Products of a linear layer, each in the mode that is fastest (axonn-sc24 V-C).

O = I W, dI = dO W^T, dW = I^T dO with I [m, k] and W [k, n], which nn.Linear stores as weight [n, k]. A product A B
runs in mode NN, NT or TN by how A and B lie in memory: N row by row, T column by column. A library's kernel and speed
depend on that; an operand that lies otherwise is copied first. On processors oneDNN multiplies in fp32, too, where
PyTorch takes a BLAS that may not know the processor well.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor


class Mode(StrEnum):
    """Layout of both operands of a product, or packing by oneDNN."""

    NN = "NN"
    NT = "NT"
    TN = "TN"
    ONEDNN = "oneDNN"


class Role(StrEnum):
    """Product of a linear layer, named as its field in Kernels."""

    FORWARD = "forward"
    INPUT_GRADIENT = "input_gradient"
    WEIGHT_GRADIENT = "weight_gradient"


class Widening(StrEnum):
    """Way in which PyTorch sums products of one format in a wider one."""

    ADDMM = "addmm"
    """the product itself adds, in the wider format"""
    MM = "mm"
    """the product is made in the wider format and then added, by a copy and another pass"""


@dataclass(frozen=True, slots=True)
class Kernels:
    """Modes of a linear layer's products. None: as the operands lie, without a copy."""

    column_major: bool = False
    """whether its weight [n, k] is stored column by column, which is W [k, n] row by row"""
    forward: Mode | None = None
    input_gradient: Mode | None = None
    weight_gradient: Mode | None = None

    def mode(self, role: Role) -> Mode | None:
        mode: Mode | None = getattr(self, role)
        return mode


PLAIN = Kernels()
"""PyTorch's own."""


def list_modes(role: Role, dtype: torch.dtype, device: torch.device) -> list[Mode]:
    """List the modes of a product here. oneDNN can't add to what is there, as a weight gradient's product does."""
    onednn = role is not Role.WEIGHT_GRADIENT and has_onednn(dtype, device)
    return [mode for mode in Mode if mode is not Mode.ONEDNN or onednn]


@cache
def has_onednn(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether oneDNN multiplies here, by an operator of PyTorch's compiler, whose result is checked first."""
    if device.type != "cpu" or dtype != torch.float32 or not torch.backends.mkldnn.is_available():
        return False
    a, b = torch.arange(12.0).view(3, 4), torch.arange(20.0).view(5, 4)
    try:
        return torch.equal(_by_onednn(a, b, a.new_ones(5)), a @ b.t() + 1)
    except (AttributeError, RuntimeError, TypeError):  # not in this torch, or with other arguments
        return False


def _by_onednn(a: Tensor, b_transposed: Tensor, bias: Tensor | None = None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(a, b_transposed, bias, "none", [], "")
    return product


def own_mode(role: Role, *, column_major: bool) -> Mode:
    """Return the mode in which no operand is copied."""
    if role is Role.WEIGHT_GRADIENT:
        return Mode.TN
    return Mode.NN if (role is Role.FORWARD) == column_major else Mode.NT


def forward(I_MK: Tensor, W_NK: Tensor, bias_N: Tensor | None, mode: Mode | None = None) -> Tensor:
    """Compute O [m, n] of a weight [n, k] that lies either way, with the bias."""
    if mode is None:
        return F.linear(I_MK, W_NK, bias_N)
    if mode is Mode.ONEDNN:
        return _by_onednn(I_MK, W_NK, bias_N)
    a, b = _laid(I_MK, W_NK.t(), mode)
    return a @ b if bias_N is None else torch.addmm(bias_N, a, b)


def input_gradient(dO_MN: Tensor, W_NK: Tensor, mode: Mode | None = None) -> Tensor:
    """Compute dI [m, k]."""
    if mode is Mode.ONEDNN:
        return _by_onednn(dO_MN, W_NK.t())
    a, b = _laid(dO_MN, W_NK, mode)
    return a @ b


def weight_gradient(out_NK: Tensor, dO_MN: Tensor, I_MK: Tensor, *, add: bool, mode: Mode | None = None) -> None:
    """Write dW into out [n, k], which lies as the weight does, or add it to what is there.

    The product is the one whose result lies row by row: of a column-major weight that is I^T dO, else dO^T I. out may
    be of a wider format than the factors where there is a widening() of it.
    """
    if out_NK.is_contiguous():
        out, a, b = out_NK, dO_MN.t(), I_MK
    else:
        out, a, b = out_NK.t(), I_MK.t(), dO_MN
    a, b = _laid(a, b, mode)
    if out.dtype == a.dtype:
        out.addmm_(a, b, beta=int(add))
    else:
        way = widening(a.dtype, out.dtype, out.device)
        assert way is not None
        _add_widened(out, a, b, int(add), way)


def gradient_dtype(compute: torch.dtype, master: torch.dtype, device: torch.device, *, shards: int) -> torch.dtype:
    """Return the format of weight gradients from their product: the masters' where they aren't scattered over
    shards.
    """
    return compute if widened_by(compute, master, device, shards=shards) is None else master


def widened_by(compute: torch.dtype, master: torch.dtype, device: torch.device, *, shards: int) -> Widening | None:
    """Return what makes weight gradients in the masters' format, unrounded; None where they have the compute format."""
    return widening(compute, master, device) if shards == 1 else None


@cache
def widening(narrow: torch.dtype, wide: torch.dtype, device: torch.device) -> Widening | None:
    """Return how products can be summed in a wider format, unrounded; None without CUDA or a library that can."""
    return None if narrow == wide or device.type != "cuda" else first_that_widens(narrow, wide, device)


def first_that_widens(narrow: torch.dtype, wide: torch.dtype, device: torch.device) -> Widening | None:
    """Return the first way that works on the device itself, by its checked result.

    A library may take no wide sum in addmm, only a wide product.
    """
    a, b = torch.arange(256.0).view(16, 16), torch.eye(16) / 256
    factors = a.to(device, narrow), b.to(device, narrow)
    for way in Widening:
        made, added = (torch.full((16, 16), value, dtype=wide, device=device) for value in (torch.nan, 1.0))
        try:
            _add_widened(made, *factors, 0, way)
            _add_widened(added, *factors, 1, way)
        except (RuntimeError, TypeError):  # no such kernel, or a torch without the overload
            continue
        product = a.to(wide) / 256
        if torch.equal(made.cpu(), product) and torch.equal(added.cpu(), product + 1):
            return way
    return None


def _add_widened(out: Tensor, a: Tensor, b: Tensor, beta: int, way: Widening) -> None:
    if way is Widening.ADDMM:
        torch.addmm(out, a, b, out_dtype=out.dtype, beta=beta, out=out)
    elif beta:
        out.add_(torch.mm(a, b, out_dtype=out.dtype))
    else:
        torch.mm(a, b, out_dtype=out.dtype, out=out)


def _laid(a: Tensor, b: Tensor, mode: Mode | None) -> tuple[Tensor, Tensor]:
    if mode is None:
        return a, b
    return _lying(a, mode[0]), _lying(b, mode[1])


def _lying(matrix: Tensor, letter: str) -> Tensor:
    return matrix.contiguous() if letter == "N" else matrix.t().contiguous().t()
