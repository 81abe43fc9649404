"""Criterion and optimizer of a user's own training loop around a parallel model.

A rank holds flat parts of the weights and some rows of the batch. So a criterion has to return its sum and its count,
which are added up over ranks, and an optimizer must treat each element of a weight alone.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from engine.comm.funnel import Comm, Kind
from engine.errors import UsageError
from engine.grid import Axis
from engine.layers.loss import CrossEntropy
from engine.layers.redistribute import all_rows
from engine.overlap.reduction import set_gradient

Criterion = Callable[[Tensor, Mapping[str, Tensor]], tuple[Tensor, float | Tensor]]
"""Map of whole outputs of some rows and their batch to the sum and the count of their losses."""


class _Whole(torch.autograd.Function):
    """Features of all ranks of an axis, each of which computes the same with them."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, comm: Comm, axis: Axis) -> Tensor:
        ctx.comm, ctx.axis = comm, axis
        gathered = comm.run(Kind.ALL_GATHER, axis, part.contiguous().view(-1))
        return gathered.view(comm.grid[axis], *part.shape).movedim(0, -2).flatten(-2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        comm, axis = ctx.comm, ctx.axis
        return gradient.chunk(comm.grid[axis], dim=-1)[comm.coords[axis]].contiguous(), None, None


def whole_output(output: Tensor, criterion: nn.Module, comm: Comm, samples: int) -> Tensor:
    """Gather a network's output over the axes that split it: those of logits. criterion: the network's own. samples: of
    the output.
    """
    if not isinstance(criterion, CrossEntropy):
        return output
    if comm.grid[criterion.axis] > 1:
        output = _Whole.apply(output, comm, criterion.axis)[..., : criterion.columns]
    if not criterion.partial:
        return output
    return all_rows(output, comm, criterion.partial).view(samples, -1, output.shape[-1])


def sum_and_count(found: object) -> tuple[Tensor, Tensor]:
    """Check a criterion's result. Raises UsageError for anything but a scalar sum and a count."""
    if isinstance(found, tuple) and len(found) == 2:
        total, count = found
        if isinstance(total, Tensor) and total.numel() == 1 and isinstance(count, int | float | Tensor):
            known = torch.as_tensor(count, dtype=torch.float64, device=total.device)
            if known.numel() == 1:
                return total.reshape(()), known.reshape(())
    raise UsageError(
        "A criterion returns the sum of its losses and how many they are, as ranks have to add up both, but "
        f"{_kind(found)} came: return (losses.sum(), losses.numel())."
    )


def _kind(found: object) -> str:
    if isinstance(found, Tensor):
        return f"a tensor of shape {tuple(found.shape)}"
    return f"a {type(found).__name__}"


def make_optimizer(
    kind: type[torch.optim.Optimizer],
    parameters: Iterable[nn.Parameter],
    options: Mapping[str, Any],
    gradient_dtype: torch.dtype,
) -> torch.optim.Optimizer:
    """Make an optimizer of a rank's parts of the weights. Raises UsageError for one that mixes elements of a weight.

    To find out, it steps a small weight twice whole, and twice cut into flat parts as ranks hold them.
    """
    own = list(parameters)
    like = own[0]
    try:
        whole, parts = (_step_twice(kind, options, like, gradient_dtype, cut=cut) for cut in (False, True))
        apart = (whole - parts).abs().max().item()
    except Exception as error:
        raise UsageError(
            f"{kind.__name__} can't step flat parts of weights, {like.dtype}, by gradients, {gradient_dtype}: {error}"
        ) from error
    if not apart <= 1e-5:
        raise UsageError(
            f"{kind.__name__} mixes elements of a weight, which ranks hold in flat parts: take an optimizer that "
            "treats each element alone, such as torch.optim.SGD or AdamW."
        )
    return kind(own, **options)


def _step_twice(
    kind: type[torch.optim.Optimizer],
    options: Mapping[str, Any],
    like: nn.Parameter,
    gradient_dtype: torch.dtype,
    *,
    cut: bool,
) -> Tensor:
    """Step a weight [4, 6] twice; return it flat."""
    drawn = torch.Generator().manual_seed(1)
    values, *gradients = torch.rand(3, 4, 6, generator=drawn)

    def parts(tensor: Tensor) -> list[Tensor]:
        return [part.clone() for part in tensor.flatten().split((7, 17))] if cut else [tensor.clone()]

    parameters = [nn.Parameter(part.to(like)) for part in parts(values)]
    optimizer = kind(parameters, **options)
    for gradient in gradients:
        for parameter, part in zip(parameters, parts(gradient), strict=True):
            set_gradient(parameter, part.to(like.device, gradient_dtype))
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in parameters]).cpu()
