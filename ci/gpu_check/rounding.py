"""How far is a tensor from the exact one, and how far may it be?

In fp32 the bound is a number of roundings. In bf16 it is what plain PyTorch loses in that format on the same device:
the distance of a gradient from the float64 one by that of PyTorch's own gradient, for several seeds. Of a right
gradient that ratio is 1 and hardly scatters, as both round alike; rounding moves a gradient by 0.5 to 2.5 % of its
norm, so that one that is wrong by 3 % is 1.6 times as far off or more, however large it is beside the others.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import geometric_mean
from typing import NamedTuple

from torch import Tensor

from engine.result import gate
from engine.result.gate import over_jobs

SEEDS = range(6)
LOOKS = 4
"""So often may what is undecided be looked at, each time by twice as many seeds: kernels that add in another order than
PyTorch's own, as those of some processors for weights by columns, move a bias by half of its distance for one seed."""
TIMES = 1.25
"""A result in bf16 may be so many times as far from float64 as PyTorch's own."""
WANT = f"at most {TIMES:g} times as far from float64 as PyTorch's own"
EXACT = 2.0**-20
"""A distance that is nothing in bf16: what is only copied is exact on both sides."""


class Worst(NamedTuple):
    """The outcome of several things that were compared in bf16, and which of them has the largest ratio."""

    outcome: gate.Outcome
    times: float
    name: str


def error(ours: Tensor, exact: Tensor) -> float:
    """Divide the largest difference by the largest exact value; infinite where shapes differ, or one is no number."""
    if ours.shape != exact.shape:
        return math.inf
    difference = (ours.double().cpu() - exact).abs().max() / exact.abs().max()
    return math.inf if difference.isnan() else float(difference)


def distance(ours: Tensor, exact: Tensor) -> float:
    """Return the norm of the difference by that of the exact one; infinite where error() is."""
    if ours.shape != exact.shape:
        return math.inf
    difference = (ours.double().cpu() - exact).norm() / exact.norm()
    return math.inf if difference.isnan() else float(difference)


def times_as_far(ours: Tensor | None, plain: Tensor, exact: Tensor) -> float:
    """Return our distance by that of PyTorch's own; infinite if ours is missing."""
    return math.inf if ours is None else (distance(ours, exact) + EXACT) / (distance(plain, exact) + EXACT)


def worst(by_seed: Iterable[Mapping[str, float]], looks: int = 1) -> Worst:
    """Hold each name's ratios, of which a mapping has those of one seed, to TIMES by their interval over seeds.

    The worst name has the largest geometric mean over seeds. looks: how often at most more seeds are asked.
    """
    found: dict[str, list[float]] = {}
    for ratios in by_seed:
        for name, ratio in ratios.items():
            found.setdefault(name, []).append(ratio)
    outcomes = [_outcome(ratios, looks) for ratios in found.values()]
    times, name = max((geometric_mean(ratios), name) for name, ratios in found.items())
    return Worst(gate.all_of(*outcomes), times, name)


def _outcome(ratios: Sequence[float], looks: int) -> gate.Outcome:
    return "fail" if math.inf in ratios else gate.at_most(over_jobs(ratios, looks), TIMES)
