"""Kinds of collectives and messages, and the lanes on which they are sent."""

from enum import StrEnum

from engine.grid import CUTTING_STAGES, SHARDING, Axis


class Kind(StrEnum):
    """Collective of Algorithm 1 (axonn-sc24), or message between two ranks of an axis."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    MAX_REDUCE = "max_reduce"
    """all-reduce of a softmax's maximum"""
    BROADCAST = "broadcast"
    """copy of the root's buffer on all ranks"""
    REDUCE = "reduce"
    """sum on the root; what is left on others means nothing"""
    SEND = "send"
    RECV = "recv"


POINT_TO_POINT = (Kind.SEND, Kind.RECV)
ROOTED = (Kind.BROADCAST, Kind.REDUCE)
IN_PLACE = (Kind.ALL_REDUCE, Kind.MAX_REDUCE, *ROOTED, *POINT_TO_POINT)


class Lane(StrEnum):
    """Purpose of a collective: small gathers that are needed soon mustn't wait behind reductions that can.

    Each axis and lane is a process group. NCCL runs those of one lane in their order, gloo two at a time.
    """

    MAIN = "main"
    GATHER = "gather"
    FORWARD = "forward"
    BACKWARD = "backward"


LANES = {SHARDING: (Lane.MAIN, Lane.GATHER), CUTTING_STAGES: (Lane.MAIN, Lane.FORWARD, Lane.BACKWARD)}
"""Lanes of axes; others have only MAIN."""
OF_MESSAGES = (Lane.FORWARD, Lane.BACKWARD)
"""Lanes of messages, one a direction, so that neither waits for the other."""


def lane_name(axis: Axis, lane: Lane) -> str:
    return axis.value if lane is Lane.MAIN else f"{axis} {lane}"


NAMES_OF_MESSAGES = frozenset(lane_name(CUTTING_STAGES, lane) for lane in OF_MESSAGES)
AXIS_OF_LANE = {lane_name(axis, lane): axis for axis in Axis for lane in LANES.get(axis, (Lane.MAIN,))}
"""Axis of every lane, by the lane's name."""
