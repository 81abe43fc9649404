"""A Link from measured times: the inverse of collectives.ring_s."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from engine.comm.collective import Kind
from engine.planning.collectives import Link, ring_s

TIE = 1e-6
"""Of the times, what more parameters have to gain."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of a collective of this input buffer among so many ranks."""

    kind: Kind
    num_bytes: float
    ranks: int
    time_s: float


def fit_link(measured: Sequence[Timed]) -> Link:
    """The link whose times differ the least from these, by least squares of their relative differences.

    Neither step_s nor half_bytes is negative, and fading is 0. In rings of one length alone nobody can tell a step's
    latency from a small message's loss: all of it is step_s then. Raises ValueError without a single time.
    """
    if not measured:
        raise ValueError("A link is fitted to at least one time.")
    times = np.array([one.time_s for one in measured])
    terms = np.array([_terms(one) for one in measured]) / times[:, None]
    best, least = np.zeros(3), inf
    for kept in ([1], [0, 1], [1, 2], [0, 1, 2]):  # the latter ones only if they are better
        found = np.zeros(3)
        scale = terms[:, kept].max(0)
        solved, _, rank, _ = np.linalg.lstsq(terms[:, kept] / scale, np.ones(len(times)), rcond=1e-9)
        found[kept] = solved / scale
        error = float(np.sqrt(np.mean((terms @ found - 1) ** 2)))
        if rank == len(kept) and found.min() >= 0 and found[1] > 0 and error < least - TIE:
            best, least = found, error
    step_s, byte_s, lost_s = map(float, best)
    return Link(1 / byte_s, step_s=step_s, half_bytes=lost_s / byte_s)


def _terms(one: Timed) -> tuple[float, float, float]:
    """What step_s, 1 / bytes_per_s and half_bytes / bytes_per_s are multiplied by in its time: a sum of the three."""

    def taken(link: Link) -> float:
        return ring_s(one.kind, one.num_bytes, one.ranks, link)

    moved = taken(Link(1.0))
    return taken(Link(inf, step_s=1.0)), moved, (taken(Link(1.0, half_bytes=one.num_bytes)) - moved) / one.num_bytes
