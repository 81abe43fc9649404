"""A figure has a verdict in a night, which may carry an alarm."""

import math
from dataclasses import dataclass
from typing import Literal

from systems.references import Key

Word = Literal["worse", "better", "same", "unknown", "failed"]


@dataclass(frozen=True, slots=True)
class Alarm:
    """A figure's level got worse with that night; the alarm is new if it was raised tonight.

    effect is how many times as bad as before the nights since then are, less one.
    """

    night: str
    new: bool
    effect: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """A figure is worse while it has an alarm, its own or that of a steadier figure of the same work (reason), and
    better if its level has lately changed for the better.

    A test without a result has a verdict without a figure (""). value is the median of the night's jobs, usual what was
    expected of it, in the mood that the canary tells, without any change that an alarm is about, and change the first
    by the second, less one, with the interval in which at least 95 of 100 nights without any change lie around it.
    drift is by how much the level is worse than the reference, and far says that the night is worse by twice its
    interval, where no alarm says either. reason says why it failed, is unknown, or has no alarm of its own.
    """

    key: Key
    figure: str
    unit: str
    word: Word
    jobs: int
    value: float = math.nan
    usual: float = math.nan
    change: float = math.nan
    low: float = math.nan
    high: float = math.nan
    drift: float = 0.0
    far: bool = False
    reason: str = ""
    alarm: Alarm | None = None
