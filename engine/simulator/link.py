"""Measured times tell a Link and what collectives take of a processor: the inverse of collectives.ring_s."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from engine.comm.collective import Kind
from engine.simulator.collectives import Link, Taken, moved_bytes, ring_s, steps

TIE = 1e-6
"""More parameters have to reduce the relative error by so much."""


@dataclass(frozen=True, slots=True)
class RingTime:
    """Time of one collective of this input buffer in a ring of ranks."""

    kind: Kind
    num_bytes: float
    ranks: int
    time_s: float


def fit_link(measured: Sequence[RingTime]) -> Link:
    """Find the link whose times differ the least from these, by least squares of the relative differences.

    Neither step_s nor half_bytes is negative, and fading is 0. Rings of one length can't tell a step's latency from a
    small message's loss: all of it is step_s then. Raises ValueError without a single time.
    """
    step_s, byte_s, lost_s = _solved(measured, _terms, ([1], [0, 1], [1, 2], [0, 1, 2]))
    return Link(1 / byte_s, step_s=step_s, half_bytes=lost_s / byte_s)


def fit_taken(measured: Sequence[RingTime]) -> Taken:
    """Fit processor seconds, which each time_s holds here, in the same way. Raises ValueError without a single one."""

    def terms(one: RingTime) -> tuple[float, ...]:
        return steps(one.kind, one.ranks), moved_bytes(one.kind, one.num_bytes, one.ranks)

    return Taken(*_solved(measured, terms, ([1], [0, 1])))


def _solved(
    measured: Sequence[RingTime], terms_of: Callable[[RingTime], tuple[float, ...]], ways: Sequence[list[int]]
) -> list[float]:
    """Find the factors by which the terms of each time add up to it, by least squares of relative errors.

    ways: sets of terms, by index, whose factors may differ from 0; each has term 1, whose factor is positive. Of the
    ways without a negative factor the best is taken, and a later one only if it is better by TIE.
    """
    if not measured:
        raise ValueError("A link is fitted to at least one time.")
    times = np.array([one.time_s for one in measured])
    terms = np.array([terms_of(one) for one in measured]) / times[:, None]
    best, least = np.zeros(terms.shape[1]), inf
    for kept in ways:
        found = np.zeros_like(best)
        scale = terms[:, kept].max(0)
        solved, _, rank, _ = np.linalg.lstsq(terms[:, kept] / scale, np.ones(len(times)), rcond=1e-9)
        found[kept] = solved / scale
        error = float(np.sqrt(np.mean((terms @ found - 1) ** 2)))
        if rank == len(kept) and found.min() >= 0 and found[1] > 0 and error < least - TIE:
            best, least = found, error
    return best.tolist()


def _terms(one: RingTime) -> tuple[float, float, float]:
    """Give what step_s, 1 / bytes_per_s and half_bytes / bytes_per_s are multiplied by in its time, their sum."""

    def over(link: Link) -> float:
        return ring_s(one.kind, one.num_bytes, one.ranks, link)

    moved = over(Link(1.0))
    return over(Link(inf, step_s=1.0)), moved, (over(Link(1.0, half_bytes=one.num_bytes)) - moved) / one.num_bytes
