"""What can be sent, and on which lane."""

from enum import StrEnum

from engine.grid import SHARDING, Axis


class Kind(StrEnum):
    """The collectives of Algorithm 1 (axonn-sc24), and what passes between two ranks of an axis.

    MAX_REDUCE is the all-reduce of a softmax's maximum.
    """

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    MAX_REDUCE = "max_reduce"
    SEND = "send"
    RECV = "recv"


POINT_TO_POINT = (Kind.SEND, Kind.RECV)
IN_PLACE = (Kind.ALL_REDUCE, Kind.MAX_REDUCE, *POINT_TO_POINT)


class Lane(StrEnum):
    """What a collective is for: a small gather that is needed soon mustn't wait behind reductions that are in no hurry.

    Each axis and lane is a process group of its own. NCCL runs those of one lane in their order, gloo two at a time.
    """

    MAIN = "main"
    GATHER = "gather"


LANES = {SHARDING: tuple(Lane)}
"""Where an axis has more lanes than MAIN."""


def lane_name(axis: Axis, lane: Lane) -> str:
    """As recordings and pictures have it."""
    return axis.value if lane is Lane.MAIN else f"{axis} {lane}"


AXIS_OF_LANE = {lane_name(axis, lane): axis for axis in Axis for lane in LANES.get(axis, (Lane.MAIN,))}
"""Of all lanes there are, by their names."""
