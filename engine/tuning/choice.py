"""Choose the mode that wins: by more than the noise, else everything stays as it is."""

from collections.abc import Mapping, Sequence
from math import inf
from statistics import median

from engine.layers.matmul import PLAIN, Kernels, Role
from engine.tuning.timing import GemmVariant

MARGIN = 0.02
"""The median ratio has to be below 1 by so much: a choice that gains less isn't worth being another one."""
Times = Mapping[GemmVariant, Sequence[float]]


def wins(times_s: Sequence[float], others_s: Sequence[float]) -> bool:
    """Say whether a way is faster than another in turns: at the median by the margin, and in all rounds but one."""
    ratios = [own / other for own, other in zip(times_s, others_s, strict=True)]
    return median(ratios) < 1 - MARGIN and sum(ratio >= 1 for ratio in ratios) <= 1


def choose(times: Times, forwards: int) -> Kernels:
    """Choose how to multiply, from the seconds by round of each way. forwards: how often O is computed for each dI and
    dW.

    The weight is stored by columns if the layer's products together are faster then.
    """
    best = {stored: _modes(times, column_major=stored) for stored in (False, True)}
    plain, moved = (seconds_of(times, best[stored], forwards) for stored in (False, True))
    chosen = best[moved is not None and plain is not None and wins(moved, plain)]
    return PLAIN if chosen is None else chosen


def _modes(times: Times, *, column_major: bool) -> Kernels | None:
    """Find the best mode of each product with the weight stored so; None where the weight can't be."""
    found = {}
    for role in Role:
        mine = {way: of for way, of in times.items() if (way.role, way.column_major) == (role, column_major)}
        own = next((of for way, of in mine.items() if way.own), None)
        if own is None:
            return None
        faster = [way for way, of in mine.items() if not way.own and wins(of, own)]
        fastest = min(faster, key=lambda way: median(mine[way]), default=None)
        found[role] = None if fastest is None else fastest.mode
    return Kernels(column_major, found[Role.FORWARD], found[Role.INPUT_GRADIENT], found[Role.WEIGHT_GRADIENT])


def fastest(times: Times, forwards: int) -> Kernels | None:
    """Give each product the way that was fastest, by whatever little; None if nothing was timed."""
    found = []
    for stored in (False, True):
        ways = {role: [way for way in times if (way.role, way.column_major) == (role, stored)] for role in Role}
        if all(ways.values()):
            modes = [min(mine, key=lambda way: median(times[way])).mode for mine in ways.values()]
            found.append(Kernels(stored, *modes))
    return min(found, key=lambda of: median(seconds_of(times, of, forwards) or [inf]), default=None)


def chosen(way: GemmVariant, kernels: Kernels) -> bool:
    """Say whether a layer with these kernels computes so."""
    mode = kernels.mode(way.role)
    return way.column_major == kernels.column_major and (way.own if mode is None else way.mode is mode)


def seconds_of(times: Times, kernels: Kernels | None, forwards: int) -> list[float] | None:
    """Give the seconds by round of all three products of a layer with these kernels; None without them."""
    if kernels is None:
        return None
    weights = {Role.FORWARD: forwards}
    parts = [[weights.get(way.role, 1) * s for s in of] for way, of in times.items() if chosen(way, kernels)]
    return [sum(part) for part in zip(*parts, strict=True)]
