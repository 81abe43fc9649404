"""Share of a figure's nights that the canary explains: a frozen program that runs in the same jobs and knows nothing of
the engine, so that both share the machine's state.
"""

import numpy as np

from reports.nights.noise import Floats, winsor_limit

FEWEST = 20
"""Fewest pairs of successive nights with a canary."""

CARRIED = 4
"""Nights without a canary, before or after one with it, for which its state is taken to last."""


def canary_share(values: Floats, canary: Floats) -> Floats:
    """Return how much of each night the canary explains. Both are logarithms, figures by nights; where the canary is
    NaN it is interpolated between the nights around, and farther than CARRIED nights from any it explains nothing.

    The share is the slope of least squares between winsorised differences from night to night, in which no change of
    level counts more than once, shrunk by what chance alone would give (James and Stein). Of a canary farther off than
    the winsor limit no share is known: it excuses what is off the same way, up to its share, and explains no more.
    """
    explained, moves = np.zeros(values.shape), np.diff(canary)
    count = np.isfinite(moves).sum(axis=1)
    some = np.flatnonzero(count >= FEWEST)
    if not len(some):
        return explained
    values, canary, moves, count = values[some], canary[some], moves[some], count[some]
    limit = winsor_limit(moves)
    y, c = np.where(np.isfinite(moves), np.diff(values), np.nan), moves
    y, c = (np.nan_to_num(np.clip(one, -of[:, None], of[:, None])) for one, of in ((y, winsor_limit(y)), (c, limit)))
    square = np.maximum((c * c).sum(axis=1), np.finfo(float).tiny)
    share = np.maximum((c * y).sum(axis=1) / square, 0.0)
    error = ((y - share[:, None] * c) ** 2).sum(axis=1) / (count - 1) / square
    share = np.minimum(share, 1.0) * np.maximum(0.0, 1 - error / np.maximum(share**2, np.finfo(float).tiny))
    state = np.stack([_carried(one) for one in canary])
    shared = share[:, None] * state
    own = values - np.median(values, axis=1, keepdims=True)
    excused = np.clip(own, np.minimum(shared, 0.0), np.maximum(shared, 0.0))
    explained[some] = np.where(np.abs(state) > limit[:, None], excused, shared)
    return explained


def _carried(canary: Floats) -> Floats:
    """Return how far each night's canary is from its median, also near nights that have it; 0 elsewhere."""
    known = np.isfinite(canary)
    off = canary - np.median(canary[known])
    if known.all():
        return off
    place = np.arange(len(canary))
    near = np.convolve(np.pad(known, CARRIED), np.ones(2 * CARRIED + 1), mode="valid") > 0
    carried: Floats = np.where(near, np.interp(place, place[known], off[known]), 0.0)
    return carried
