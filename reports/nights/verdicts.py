"""A figure has a verdict in a night, which may carry an alarm."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from systems.references import Key

Word = Literal["faster", "same", "slower", "unknown", "failed"]
ALARMED = ", ALARM"
"""The word of a verdict that has an alarm ends with this."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """A figure got worse with that night; the alarm is new if it was raised tonight.

    effect is how many times as bad as expected it is, less one, and chance that of as much without a change, when the
    alarm was raised.
    """

    night: str
    new: bool
    effect: float
    chance: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a test without a result has no figure ("").

    value is the median of the night's jobs, usual that of the reference, and change the first by the second, less one,
    with its interval; least is the smallest change that so many jobs are likely to show, if no other figure changes. p
    is the change's, two-sided, and 1 for one that doesn't count. reason says why it failed or is unknown.
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
    least: float = math.nan
    p: float = 1.0
    reason: str = ""
    alarm: Alarm | None = None

    @property
    def said(self) -> str:
        """The word says besides whether there is an alarm."""
        return f"{self.word}{ALARMED}" if self.alarm else self.word


def words(verdicts: Iterable[Verdict]) -> dict[Word, int]:
    counted = Counter(verdict.word for verdict in verdicts)
    return {word: counted[word] for word in ("slower", "faster", "same", "unknown", "failed")}
