"""A collective takes time of a link, and of a processor where that carries it out. No torch in it.

Bytes are those of a rank's input buffer, as the recorder counts them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, inf, log2

from engine.comm.collective import ROOTED, Kind
from engine.grid import Axis

ELEMENT = 4
"""A number that ranks sum has so many bytes."""
WITHIN_NODE = 0.25
"""Within a node, a ring's step is taken to have this share of the latency between nodes."""


@dataclass(frozen=True, slots=True)
class Link:
    """Messages of a ring travel over it.

    bytes_per_s: the peer-to-peer bandwidth (beta) of a ring of two. step_s: latency of each step of a ring (alpha).
    half_bytes: a buffer of n bytes reaches n / (n + half_bytes) of the bandwidth. fading: over a ring of G ranks the
    bandwidth is divided by 1 + fading log2(G / 2).
    """

    bytes_per_s: float
    step_s: float = 0.0
    half_bytes: float = 0.0
    fading: float = 0.0

    def over(self, ranks: int) -> float:
        """Give the bandwidth in a ring of so many ranks, bytes/s."""
        return self.bytes_per_s / (1 + self.fading * log2(max(ranks, 2) / 2))


Links = Mapping[Axis, Link]


@dataclass(frozen=True, slots=True)
class Taken:
    """Time that a collective takes of a rank's processor, whose threads send, receive and add up."""

    step_s: float
    """For each step of a ring."""
    byte_s: float
    """For each byte that the rank sends."""

    def of(self, kind: Kind, num_bytes: float, ranks: int) -> float:
        """Give the processor seconds of a collective of this input buffer among so many ranks."""
        return steps(kind, ranks, num_bytes) * self.step_s + moved_bytes(kind, num_bytes, ranks) * self.byte_s


def steps(kind: Kind, ranks: int, num_bytes: float = inf) -> int:
    """Count the steps of a ring (Thakur et al. 2003; Rabenseifner 2004), along which pieces of a root's buffer follow
    one another, or those of recursive doubling, by which a sum goes that has less than ELEMENT bytes for each rank, as
    it can't be cut (Thakur et al. 2003).
    """
    if kind in (Kind.SEND, Kind.RECV):
        return 1
    if kind not in (Kind.ALL_REDUCE, Kind.MAX_REDUCE):
        return ranks - 1
    return 2 * (ranks - 1) if num_bytes >= ranks * ELEMENT else ceil(log2(ranks))


def moved_bytes(kind: Kind, num_bytes: float, ranks: int) -> float:
    """Count the bytes that each rank of a ring sends, and receives, for an input buffer of so many."""
    if kind in ROOTED:
        return num_bytes
    piece = num_bytes if kind in (Kind.ALL_GATHER, Kind.SEND, Kind.RECV) else num_bytes / ranks
    return steps(kind, ranks) * piece


def ring_s(kind: Kind, num_bytes: float, ranks: int, link: Link) -> float:
    """Give the seconds of a collective of this input buffer among so many ranks; 0 for one alone."""
    if ranks == 1:
        return 0.0
    moved = moved_bytes(kind, num_bytes, ranks)
    buffer = num_bytes * (ranks if kind is Kind.ALL_GATHER else 1)  # the larger of what goes in and what comes out
    short_of_bandwidth = 1 + link.half_bytes / buffer
    return steps(kind, ranks, num_bytes) * link.step_s + moved / link.over(ranks) * short_of_bandwidth
