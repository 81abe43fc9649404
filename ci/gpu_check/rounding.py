"""How far a tensor is from the exact one."""

import math

from torch import Tensor


def error(ours: Tensor, exact: Tensor) -> float:
    """The largest difference by the largest exact value; infinite where something isn't a number, or shapes differ."""
    if ours.shape != exact.shape:
        return math.inf
    difference = (ours.double().cpu() - exact).abs().max() / exact.abs().max()
    return math.inf if difference.isnan() else float(difference)


def distance(ours: Tensor, exact: Tensor) -> float:
    """The norm of the difference by that of the exact one; infinite as above."""
    if ours.shape != exact.shape:
        return math.inf
    difference = (ours.double().cpu() - exact).norm() / exact.norm()
    return math.inf if difference.isnan() else float(difference)
