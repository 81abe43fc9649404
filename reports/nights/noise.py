"""Noise of a system's nights, learnt from all its figures together. Rows are figures, columns nights, the oldest first.

How nights of a figure vary is one scale of its own, that of differences from night to night. How slowly they vary is
told by semivariograms, each in squares of its figure's scale, and by their mean over all figures, as one figure has few
nights. They take autocorrelation, weeks, seasons and random walks alike, and give the variance of any difference of
means.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import bdtrc

Floats: TypeAlias = npt.NDArray[np.float64]

WINSOR_LIMIT = 4.0
"""Scales beyond which a night is winsorised."""
SCALE_OF_MAD = 1.4826
"""Standard deviation of a normal distribution by its median absolute deviation."""
LEAST_SCALE = 1e-3
"""Scale of a figure that never varies."""
AROUND = (5, 7, 9, 11, 13, 15, 17, 19, 21)
"""Numbers of nights that may tell what is usual around one of them."""
LATELY = 13
"""Fewest last nights whose scale counts where it is larger than that of all, as volatility comes in clusters."""
LAGS = np.array([*range(1, 22), *range(23, 60, 3), *range(62, 180, 6)])
"""Nights apart of which the semivariogram is known; between them it is interpolated."""
LEFT_OUT = 0.1
"""Share of figures that are left out of the mean semivariogram."""
TAKEN = 0.195
"""Standard deviations by which the mean of normal ones without LEFT_OUT of them, the largest, is lower."""
NORMAL_RANGE = 1.349
"""Interquartile range of normal ones in standard deviations."""
MOST_DIFFER = 2.0
"""Standard deviation, by the median, that is taken for no more."""
FEWEST_PAIRS = 10
"""Pairs of nights from which a semivariogram is known."""


def winsor_limit(moves: Floats) -> Floats:
    """Return how far off a night may be, by each figure's differences from night to night, of which NaN are unknown."""
    middle = np.nanmedian if np.isnan(moves).any() else np.median
    limit: Floats = np.maximum(WINSOR_LIMIT * SCALE_OF_MAD * middle(np.abs(moves), axis=-1), LEAST_SCALE)
    return limit


def running_median(nights: Floats, around: int) -> Floats:
    """Return the median of the `around` nights with each in their middle; at either end of the first or last ones."""
    near = np.lib.stride_tricks.sliding_window_view(nights, around, axis=1)
    middle = np.partition(near, around // 2, axis=2)[:, :, around // 2]
    padded: Floats = np.pad(middle, ((0, 0), (around // 2, around // 2)), mode="edge")
    return padded


def winsorise(nights: Floats, around: int) -> Floats:
    """Move nights that are too far off to the limit, from the level and from the `around` nights with each in their
    middle (at either end the first or last ones).
    """
    limit = winsor_limit(np.diff(nights))[:, None] / np.sqrt(2)
    level = np.median(nights, axis=1)[:, None]
    middle = running_median(nights, around)
    moved: Floats = np.clip(nights, np.minimum(middle, level) - limit, np.maximum(middle, level) + limit)
    return moved


def outlier_share(nights: Floats) -> Floats:
    """Return the share of each figure's nights that are too far off."""
    share: Floats = np.mean(winsorise(nights, AROUND[0]) != nights, axis=1)
    return share


def nights_around(outliers: float, chance: float) -> int:
    """Return the fewest nights around one of which more than half are outliers by that chance at most."""
    enough = (around for around in AROUND if bdtrc(around // 2, around, outliers) <= chance)
    return next(enough, AROUND[-1])


def most_outliers(window: int, outliers: float, chance: float) -> int:
    """Return how many nights of a window may be outliers before chance gives more in that share of cases only; two
    prove nothing anyway.
    """
    counts = np.arange(window + 1)
    return max(2, int(np.argmax(bdtrc(counts, window, outliers) <= chance)))


def scale(nights: Floats) -> Floats:
    """Return each figure's scale: that of its winsorised differences from night to night."""
    moves = np.diff(nights)
    limit = winsor_limit(moves)[:, None]
    found: Floats = np.sqrt(np.mean(np.clip(moves, -limit, limit) ** 2, axis=1) / 2)
    return np.maximum(found, LEAST_SCALE)


def scale_lately(nights: Floats) -> Floats:
    """Return each figure's scale by the median of its differences, which a change of level doesn't move."""
    found: Floats = SCALE_OF_MAD * np.median(np.abs(np.diff(nights)), axis=1) / np.sqrt(2)
    return found


def semivariograms(nights: Floats, of_scale: Floats) -> Floats:
    """Return each figure's semivariogram at LAGS in squares of its scale; NaN where too few nights are so far apart."""
    found = np.full((len(nights), len(LAGS)), np.nan)
    for place, lag in enumerate(LAGS):
        if lag > 1 and nights.shape[1] - lag < FEWEST_PAIRS:
            break
        apart = nights[:, lag:] - nights[:, :-lag]
        found[:, place] = np.einsum("ij,ij->i", apart, apart) / apart.shape[1] / 2 / of_scale**2
    return found


def of_slopes(nights: Floats, of_scale: Floats) -> Floats:
    """Return the part of each figure's semivariogram that is of the slope of its nights, by least squares."""
    place = np.arange(nights.shape[1]) - (nights.shape[1] - 1) / 2
    slopes = nights @ place / (place @ place) / of_scale
    part: Floats = (slopes[:, None] * LAGS) ** 2 / 2
    return part


def mean_of(semivariograms: Floats) -> Floats:
    """Return the mean of semivariograms at each of LAGS, of those that are known there, without the largest ones, which
    are of figures that change. It is raised by what that takes from the mean of normal ones that differ as much.
    """
    if not len(semivariograms):
        return np.full(len(LAGS), np.nan)
    ordered = np.sort(semivariograms, axis=0)  # NaN comes last
    known = np.isfinite(ordered).sum(axis=0)
    left_out = np.floor(LEFT_OUT * known)
    inside = np.arange(len(ordered))[:, None] < known - left_out
    mean = np.where(inside, ordered, 0.0).sum(axis=0) / np.maximum(known - left_out, 1)
    places = [np.maximum((share * known).astype(int) - 1, 0) for share in (0.25, 0.5, 0.75)]
    low, middle, high = (ordered[place, np.arange(len(LAGS))] for place in places)
    differ = np.minimum((high - low) / NORMAL_RANGE / np.maximum(middle, LEAST_SCALE), MOST_DIFFER)
    raised: Floats = mean / (1 - TAKEN * differ * (left_out > 0))
    return np.where(known > 0, raised, np.nan)


def contrast_variance(semivariogram: Floats, last: int, before: int) -> Floats:
    """Return the variance of the mean of the last nights less that of the nights right before them, in squares of the
    scale: twice the mean semivariogram between both, less those within each. Semivariograms are at LAGS, one or one a
    row; beyond the last lag that is known they stay. The variance is no less than that of independent nights.
    """
    apart = np.arange(1, last + before)
    between = np.minimum(np.minimum(apart, last + before - apart), min(last, before)) / (last * before)
    pairs = 2 * between
    for count in (last, before):
        pairs[: count - 1] -= 2 * (count - apart[: count - 1]) / count**2
    place = np.interp(apart, LAGS, np.arange(len(LAGS)))
    weights = np.zeros(len(LAGS))
    np.add.at(weights, place.astype(int), pairs * (1 - place % 1))
    np.add.at(weights, np.minimum(place.astype(int) + 1, len(LAGS) - 1), pairs * (place % 1))
    variance: Floats = np.maximum(_filled(semivariogram) @ weights, 1 / last + 1 / before)
    return variance


def _filled(semivariogram: Floats) -> Floats:
    known = np.isfinite(semivariogram).sum(axis=-1, keepdims=True)
    last = np.minimum(np.arange(len(LAGS)), np.maximum(known - 1, 0))
    return np.take_along_axis(semivariogram, last.reshape(semivariogram.shape), axis=-1)
