"""What the regions of a profile are called: "phase/backward", "layer/blocks.3.attention.qkv", "wait/all_reduce x 7"."""

from enum import StrEnum


class Region(StrEnum):
    """What a region is of. STEP: an iteration. LAYER: a layer's forward, by its serial name; BACKWARD: operations that
    give back a gradient to what the layer did in its forward. ISSUE (a moment), LAUNCH (its kernels', on CUDA), WAIT: a
    collective's, by its kind, its lane and which of the step's it is.
    """

    STEP = "step"
    PHASE = "phase"
    LAYER = "layer"
    BACKWARD = "backward"
    ISSUE = "issue"
    LAUNCH = "launch"
    WAIT = "wait"

    def of(self, what: object) -> str:
        """The region's name."""
        return f"{self}/{what}"


REGIONS = {str(region): region for region in Region}


def parsed(name: str) -> tuple[Region, str] | None:
    """What a name is the region of; None for one of another program.

    >>> parsed("phase/forward")
    (<Region.PHASE: 'phase'>, 'forward')
    """
    kind, slash, what = name.partition("/")
    return (REGIONS[kind], what) if slash and kind in REGIONS else None


def collective(kind: str, lane: str, number: int) -> str:
    """What a region of a collective is of."""
    return f"{kind} {lane} {number}"


def kind_and_lane(what: str) -> tuple[str, str]:
    """Back from collective().

    >>> kind_and_lane("all_gather z gather 12")
    ('all_gather', 'z gather')
    """
    kind, _, rest = what.partition(" ")
    return kind, rest.rpartition(" ")[0]
