"""Kernels take a replicated parameter in the compute dtype."""

import torch
from torch import Tensor, nn

from engine.overlap.schedule import WeightSchedule


def cast(parameter: nn.Parameter, schedule: WeightSchedule) -> Tensor:
    """Give the copy that the schedule makes once a step; its gradient is added to the parameter's."""
    if parameter.dtype == schedule.compute_dtype:
        return parameter
    return _Cast.apply(parameter, schedule)


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, parameter: nn.Parameter, schedule: WeightSchedule) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.parameter = parameter
        return schedule.cast(parameter).detach()  # what is returned takes part in autograd, and the copy must not

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[None, None]:  # type: ignore[no-untyped-def]
        ctx.parameter.grad.add_(gradient)  # of a narrower dtype, which autograd would cast first
        return None, None
