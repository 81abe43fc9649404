"""Kinds of collectives and messages, and the lanes on which they are sent."""

from enum import StrEnum

from engine.grid import CUTTING_STAGES, SHARDING, Axis


class Kind(StrEnum):
    """Collective of Algorithm 1 (axonn-sc24), or message between two ranks of an axis.

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
    """Purpose of a collective: a small gather that is needed soon mustn't wait behind reductions that are in no hurry.

    Each axis and lane is a process group of its own. NCCL runs those of one lane in their order, gloo two at a time.
    """

    MAIN = "main"
    GATHER = "gather"
    FORWARD = "forward"
    BACKWARD = "backward"


LANES = {SHARDING: (Lane.MAIN, Lane.GATHER), CUTTING_STAGES: (Lane.MAIN, Lane.FORWARD, Lane.BACKWARD)}
"""Lanes of axes; others have only MAIN."""
OF_MESSAGES = (Lane.FORWARD, Lane.BACKWARD)
"""Lanes for messages of one direction each, so that neither direction waits for the other, and for no collectives."""


def lane_name(axis: Axis, lane: Lane) -> str:
    """Name the lane as recordings and pictures do."""
    return axis.value if lane is Lane.MAIN else f"{axis} {lane}"


NAMES_OF_MESSAGES = frozenset(lane_name(CUTTING_STAGES, lane) for lane in OF_MESSAGES)
AXIS_OF_LANE = {lane_name(axis, lane): axis for axis in Axis for lane in LANES.get(axis, (Lane.MAIN,))}
"""Axis of every lane, by the lane's name."""
