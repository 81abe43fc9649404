"""Time-outs of ranks that wait for each other, in every command that may have several. No torch."""

import math
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from engine.comm.meeting import MEETING_S
from engine.errors import UsageError
from engine.options import Seconds

LONGEST_S = 31_536_000  # a year


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Times that ranks wait. Raises UsageError for what is no time to wait."""

    timeout_s: Annotated[Seconds, Parameter(name="--timeout")] = 600.0
    """for any collective"""
    meeting_timeout_s: Annotated[Seconds, Parameter(name="--meeting-timeout")] = MEETING_S
    """for all ranks to be there, from when one is"""

    def __post_init__(self) -> None:
        for option, seconds in {"--timeout": self.timeout_s, "--meeting-timeout": self.meeting_timeout_s}.items():
            if not (math.isfinite(seconds) and seconds > 0):
                raise UsageError(f"{option} is a positive number, but {seconds} was given.")
            if seconds > LONGEST_S:
                raise UsageError(f"{option} is at most {LONGEST_S} seconds, but {seconds:g} was given.")
