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
    """Return how much of each night the canary explains. Both are logarithms; where the canary is NaN it is
    interpolated between the nights around, and farther than CARRIED nights from any it explains nothing.

    The share is the slope of least squares between winsorised differences from night to night, in which no change of
    level counts more than once, shrunk by what chance alone would give (James and Stein). Of a canary farther off than
    the winsor limit no share is known: it excuses what is off the same way, up to its share, and explains no more.
    """
    known = np.isfinite(canary)
    both = known[1:] & known[:-1]
    if np.count_nonzero(both) < FEWEST:
        return np.zeros(len(values))
    moves = [np.diff(one)[both] for one in (values, canary)]
    y, c = (np.clip(one, -winsor_limit(one), winsor_limit(one)) for one in moves)
    square = float(c @ c)
    share = float(c @ y) / square if square else 0.0
    if share <= 0:
        return np.zeros(len(values))
    residuals = y - share * c
    error = float(residuals @ residuals) / (len(y) - 1) / square
    share = min(share, 1.0) * max(0.0, 1 - error / share**2)
    place = np.arange(len(values))
    state = np.interp(place, place[known], canary[known] - np.median(canary[known]))
    near = np.convolve(np.pad(known, CARRIED), np.ones(2 * CARRIED + 1), mode="valid") > 0
    state = np.where(near, state, 0.0)
    own = values - np.median(values)
    excused = np.clip(own, np.minimum(share * state, 0.0), np.maximum(share * state, 0.0))
    explained: Floats = np.where(np.abs(state) > winsor_limit(moves[1]), excused, share * state)
    return explained
