"""A Link from measured times, the inverse of collectives.ring_s, and what it takes of a processor."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from engine.comm.collective import Kind
from engine.simulator.collectives import Link, Taken, moved_bytes, ring_s, steps

TIE = 1e-6
"""Of the times, what more parameters have to gain."""


@dataclass(frozen=True, slots=True)
class RingTime:
    """Seconds of a collective of this input buffer among so many ranks."""

    kind: Kind
    num_bytes: float
    ranks: int
    time_s: float


def fit_link(measured: Sequence[RingTime]) -> Link:
    """The link whose times differ the least from these, by least squares of their relative differences.

    Neither step_s nor half_bytes is negative, and fading is 0. In rings of one length alone nobody can tell a step's
    latency from a small message's loss: all of it is step_s then. Raises ValueError without a single time.
    """
    step_s, byte_s, lost_s = _solved(measured, _terms, ([1], [0, 1], [1, 2], [0, 1, 2]))
    return Link(1 / byte_s, step_s=step_s, half_bytes=lost_s / byte_s)


def fit_taken(measured: Sequence[RingTime]) -> Taken:
    """The same for processor seconds, which time_s is of each. Raises ValueError without a single one."""

    def terms(one: RingTime) -> tuple[float, ...]:
        return steps(one.kind, one.ranks), moved_bytes(one.kind, one.num_bytes, one.ranks)

    return Taken(*_solved(measured, terms, ([1], [0, 1])))


def _solved(
    measured: Sequence[RingTime], terms_of: Callable[[RingTime], tuple[float, ...]], ways: Sequence[list[int]]
) -> list[float]:
    """What the terms of the times are multiplied by, where none but those of one of the ways isn't 0; of the ways, each
    of which has the second term, a later one only if it is better.
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
    """What step_s, 1 / bytes_per_s and half_bytes / bytes_per_s are multiplied by in its time: a sum of the three."""

    def taken(link: Link) -> float:
        return ring_s(one.kind, one.num_bytes, one.ranks, link)

    moved = taken(Link(1.0))
    return taken(Link(inf, step_s=1.0)), moved, (taken(Link(1.0, half_bytes=one.num_bytes)) - moved) / one.num_bytes
