"""Regions of a profile have such names: "phase/backward", "layer/blocks.3.attention.qkv", "wait/all_reduce x 7"."""

from enum import StrEnum


class Region(StrEnum):
    """A region is of one of these. STEP: an iteration. LAYER: a layer's forward, by its serial name; BACKWARD:
    operations that give back a gradient to what the layer did in its forward. ISSUE (a moment), LAUNCH (its kernels',
    on CUDA), WAIT: a collective's, by its kind, its lane and which of the step's it is.
    """

    STEP = "step"
    PHASE = "phase"
    LAYER = "layer"
    BACKWARD = "backward"
    ISSUE = "issue"
    LAUNCH = "launch"
    WAIT = "wait"

    def of(self, what: object) -> str:
        """Give the region's name."""
        return f"{self}/{what}"


REGIONS = {str(region): region for region in Region}


def parsed(name: str) -> tuple[Region, str] | None:
    """Read the region from its name; None for one of another program.

    >>> parsed("phase/forward")
    (<Region.PHASE: 'phase'>, 'forward')
    """
    kind, slash, what = name.partition("/")
    return (REGIONS[kind], what) if slash and kind in REGIONS else None


def collective(kind: str, lane: str, number: int) -> str:
    """Describe a collective, as the names of its regions have it."""
    return f"{kind} {lane} {number}"


def kind_and_lane(what: str) -> tuple[str, str]:
    """Read what collective() has written.

    >>> kind_and_lane("all_gather z gather 12")
    ('all_gather', 'z gather')
    """
    kind, _, rest = what.partition(" ")
    return kind, rest.rpartition(" ")[0]
