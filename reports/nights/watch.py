"""A figure is followed from night to night: what is expected of the next, and which alarms and gains nights show."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from reports.nights import evidence
from reports.nights.evidence import BASELINE, FEWEST_NIGHTS, LOOK_BACK, Expected

STILL_WORSE = 0.5
"""An alarm ends with two nights in a row that are worse by less than this part of its effect."""
LASTS = 6
"""A gain has to last so many nights: a few good ones are luck."""


@dataclass(frozen=True, slots=True)
class _Gain:
    """A figure is better since a night; usual is what had been expected of the nights since then."""

    began: int
    usual: Expected


@dataclass(frozen=True, slots=True)
class _Open:
    """An alarm has been raised, as a figure is worse since a night; usual is what had been expected of the nights since
    then. effect and chance are those of evidence.Evidence.
    """

    began: int
    usual: Expected
    effect: float
    chance: float

    def is_over(self, middle: Sequence[float]) -> bool:
        two = middle[max(self.began, len(middle) - 2) :]
        return len(two) == 2 and max(two) - self.usual.level < STILL_WORSE * self.effect


class Watch:
    """Follows a figure from night to night. A night is its jobs, each how much worse it is than the reference, as the
    natural logarithm. The chance of an alarm's evidence is at most the limit.

    While an alarm is open, what got worse still is found against the nights since then; the newest alarm is reported. A
    gain, by evidence as strong, is what is usual from then on: to lose it is a change for the worse.
    """

    def __init__(self, by_reference: Expected, limit: float) -> None:
        self._by_reference, self._limit = by_reference, limit
        self._middle, self._nights = list[float](), list[Sequence[float]]()
        self._ends = list[tuple[float, float]]()
        self._open = list[_Open]()
        self._bad, self._over = set[int](), 0
        self._gain: _Gain | None = None

    def looks_worse(self, jobs: Sequence[float]) -> bool:
        """Say whether a night of these jobs is worth another one."""
        if self._open:
            usual = _since(self._open[-1].usual, self._middle[self._open[-1].began :])
        else:
            usual = self._expected(len(self._middle), 1)
        so_before = bool(self._middle) and evidence.looks_worse(self._middle[-1], usual)
        return evidence.looks_worse(_lower(jobs), usual, so_before)

    def add(self, jobs: Sequence[float]) -> tuple[int, bool, float, float] | None:
        """Add a night; returns its alarm, if there is one: since which of the nights that were added, whether it is
        new, by how much, as a fraction, and the chance of its evidence.
        """
        self._middle.append(median(jobs))
        self._nights.append(jobs)
        self._ends.append((min(jobs), max(jobs)))
        while self._open and self._open[-1].is_over(self._middle):
            self._over = len(self._middle) - 2
            self._bad.update(range(self._open.pop().began, self._over))
        new = self._new()
        if new:
            self._open.append(new)
        if not self._open:
            self._gain = self._gained() or self._gain
            return None
        alarm = self._open[-1]
        now = median(self._middle[max(alarm.began, len(self._middle) - LOOK_BACK) :]) - alarm.usual.level
        return alarm.began, new is not None, math.expm1(now), alarm.chance

    def _expected(self, until: int, ahead: float) -> Expected:
        """The usual nights up to then tell what is expected so many nights later; where they are too few, the reference
        does, or what was expected before a gain, which only moves the level.
        """
        before = self._usual(until)
        if len(before) >= FEWEST_NIGHTS:
            return self._by_nights(before, ahead, 1)
        return _since(self._gain.usual, self._middle[self._gain.began : until]) if self._gain else self._by_reference

    def _usual(self, until: int) -> list[int]:
        """Nights up to then are usual if they came since the last gain, and in no alarm that is over."""
        began = self._gain.began if self._gain else 0
        return [at for at in range(began, until) if at not in self._bad][-BASELINE:]

    def _by_nights(self, before: Sequence[int], ahead: float, sign: int) -> Expected:
        """A sign of -1 gives what is expected with all signs turned."""
        middle = [sign * self._middle[at] for at in before]
        least = [sign * self._ends[at][0 if sign > 0 else 1] for at in before]
        return evidence.from_nights(np.array(middle), ahead, np.array(least))

    def _gained(self) -> _Gain | None:
        """The last night shows a gain if it would be an alarm with all signs turned, and has lasted. None is looked for
        until enough nights tell what is usual since the last one.
        """
        count = len(self._middle)
        window = min(LOOK_BACK, count - self._over)
        before = self._usual(count - window)
        if len(before) >= FEWEST_NIGHTS:
            turned = self._by_nights(before, window, -1)
        elif self._gain:
            return None
        else:
            turned = self._by_reference
        if window < LASTS or -self._middle[-1] - turned.level < STILL_WORSE * evidence.LEAST_EFFECT:
            return None
        found = evidence.strongest([[-job for job in night] for night in self._nights[-window:]], turned)
        if found.nights < LASTS or found.chance > self._limit:
            return None
        return _Gain(count - found.nights, self._expected(count - window, window))

    def _new(self) -> _Open | None:
        """The last night may raise an alarm beside those that are open."""
        count = len(self._middle)
        if self._open:
            since = self._middle[self._open[-1].began :]
            window = min(LOOK_BACK, len(since) // 2)
            usual = _since(self._open[-1].usual, since[: len(since) - window])
        else:
            window = min(LOOK_BACK, count - self._over)  # what an alarm has shown proves nothing new
            if self._gain:
                window = min(window, (count - self._gain.began) // 2)
            usual = self._expected(count - window, window)
        if not window or self._middle[-1] - usual.level < STILL_WORSE * evidence.LEAST_EFFECT:
            return None
        found = evidence.strongest(self._nights[-window:], usual)
        return _Open(count - found.nights, usual, found.effect, found.chance) if found.chance <= self._limit else None


def _since(usual: Expected, nights: Sequence[float]) -> Expected:
    """These nights, which were worse, are what is expected from then on."""
    error = usual.scale * math.sqrt(evidence.VARIANCE_OF_MEDIAN / len(nights))
    return replace(usual, level=median(nights), error=error)


def _lower(jobs: Sequence[float]) -> float:
    """More than half of the jobs are as bad as this or worse."""
    return sorted(jobs)[(len(jobs) - 1) // 2]
