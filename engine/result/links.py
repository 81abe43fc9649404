"""`bench collectives` measured what rings of ranks send, within a node and between nodes.

Bandwidths are those of a ring, from rank to rank, in bytes/s and one direction; times are those of the slowest rank.
"""

from typing import Literal

from engine.result.sampled import Sampled
from engine.schema import Record


class CollectiveTime(Sampled):
    """It is one collective in all groups at once.

    input_bytes: of a rank's input buffer; moved_bytes: what a rank of a ring sends for it. processor_s: that it takes
    of a rank's processor, all threads together, on average; absent for accelerators.
    """

    kind: Literal["all_gather", "reduce_scatter", "all_reduce"]
    input_bytes: int
    moved_bytes: float
    bytes_per_s: float
    processor_s: float | None = None


class Rings(Record):
    """These groups communicated at once, of so many ranks each, which are so many ranks apart.

    groups: in all; nodes: that one of them spans. bytes_per_s: of the largest message, the three collectives together.
    """

    apart: int
    ranks: int
    groups: int
    nodes: int
    times: tuple[CollectiveTime, ...]
    bytes_per_s: float


class FittedLink(Record):
    """It is the link between nodes that fits all that one rank a node measured (engine/simulator/link.py)."""

    bytes_per_s: float
    step_s: float
    half_bytes: float


class Links(Record):
    """They are what was measured of links. message_bytes: the largest buffer, input or output. within: groups within a
    node, on all nodes at once, those of all its processors in several sizes. alone: one rank a node, of two nodes and
    of all, in several sizes. shared: all ranks of all nodes, as one ring, and as more and more until each has one rank
    a node.
    """

    nodes: int
    devices_per_node: int
    message_bytes: int
    within: tuple[Rings, ...] = ()
    alone: tuple[Rings, ...] = ()
    shared: tuple[Rings, ...] = ()
    fitted: FittedLink | None = None
