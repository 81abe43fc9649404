"""Detection of slowdowns from night to night, in all figures of a system together.

A night of a figure is the median of its jobs, as the logarithm of how bad it is, less what the canary explains
(canary.py). The mean of the last w nights is compared with that of up to BASELINE nights before, winsorised, for each w
of WINDOWS; the worst of the last nights count for little more than the next one, as many as outliers alone may well be
there, and two at least: one or two nights prove nothing, however bad. The difference over its standard error, which
the noise of all figures gives (noise.py), has to exceed two limits:

* what chance gives in at most the limit's share of nights, by Student's t over all windows;
* MARGIN times the largest difference of as many nights or fewer that came and went, of the figure itself, or of
  RETURNED tests of the system, if it is near what chance gives or more. So what the machine does now and then raises
  nothing when it does it again.

A slowdown found, the nights before it are moved by it, so that all nights tell of the present level. Once it is over
they are moved back, and its own nights, too, as if it had not been, since what was mended is no habit of the machine.
Those alike within HABIT nights are, of a figure from the second on, and of several figures from the third: they are put
back into the nights, and are differences that came and went. A gain that is lost within FEWEST nights was none.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from reports.nights import noise
from reports.nights.levels import BASELINE, FEWEST, GIVEN_UP, KEPT, SHOWN, Expected, Gain, Row, Slowdown, tidy, times
from reports.nights.noise import Floats
from reports.nights.shape import creeps
from systems.references import LEAST

FALSE_ALARMS_A_YEAR = 0.2
"""False alarms that all figures of a system together may raise by chance alone."""
NIGHTS_A_YEAR = 365
WINDOWS = (SHOWN, 5, 8, 13, 21, 34, 55, 89)
"""Numbers of last nights in which a change is looked for, behind FEWEST or more; its first night is found then."""
WORST = 1.5
"""Scales above the next one that the worst of the last nights count for at most."""
MARGIN = 1.3
"""Factor by which a difference has to exceed those that came and went."""
KNOWN = 1.0
"""Part of what chance gives from which a difference that came and went counts."""
RETURNED = 3
"""Tests whose largest difference that came and went counts for every other, and slowdowns of different times and
figures that are a habit.
"""
RETURNED_SHARE, OF_FEW = 0.05, 1.25
"""Share of tests up to which such differences are of few, and by how much of what chance gives they count at most."""
ALIKE, HABIT = 2, 90
"""Factor by which the sizes of slowdowns of one habit differ at most, and nights within which those of several figures
or of one make one.
"""
AFTER = 3
"""Fewest nights after a difference that tell whether it went."""
LEARNING, JUDGED = 25, 55
"""Nights that tell of autocorrelation; of more nights than LEARNING the last ones, at most JUDGED, don't."""
EARLY, LEAST_EARLY = 95, 0.05
"""Nights that tell little of autocorrelation, and the size from which a change counts until there are more."""
DEGREES_A_NIGHT = 0.6
"""Degrees of freedom of a scale, a night."""
WORTH_A_JOB = 1.645
"""Scales above the others from which a night is worth another job: one in twenty is."""
SIGNS = (1.0, -1.0)


def false_alarm_limit(figures: float) -> float:
    """Return the share of a figure's nights in which chance alone may show a change, by a system's judged figures."""
    return FALSE_ALARMS_A_YEAR / NIGHTS_A_YEAR / max(1.0, figures)


class Detector:
    """Levels of all figures of a system, followed from night to night.

    limits: by figure, the share of nights in which chance alone may show a change. tests: by figure, the number of the
    test that it is of; each is of its own where that isn't given.
    """

    def __init__(self, limits: Sequence[float], tests: Sequence[int] | None = None) -> None:
        count = len(limits)
        self._tests = np.arange(count) if tests is None else np.array(tests, dtype=np.int64)
        self.slowdowns: list[Slowdown] = []
        """All that were ever found, in their order."""
        self.gains: list[Gain] = []
        self.rows = [Row() for _ in range(count)]
        self._limits = np.array(limits)
        self._scale = np.ones(count)
        self._outliers = np.full(count, np.nan)
        self._semivariograms = np.full((count, len(noise.LAGS)), np.nan)
        self._without_slope = self._semivariograms.copy()
        self._of_all = np.full(len(noise.LAGS), np.nan)
        """Mean of the figures' semivariograms."""
        self._returned = np.zeros((count, len(SIGNS), len(WINDOWS)))
        """Largest differences that came and went, by sign and window."""

    def add(self, night: int, jobs: Mapping[int, tuple[Sequence[float], Sequence[float]]]) -> None:
        """Add a night: by figure, the logarithms of how bad each of its jobs is, and of the canary's seconds in those
        that ran it.
        """
        for figure, (values, canary) in jobs.items():
            self.rows[figure].append(night, values, canary)
        self._forget(night)
        blocks = self._blocks(jobs)
        for figures, nights in blocks:
            self._learn(figures, nights)
        self._of_all = noise.mean_of(self._semivariograms)
        for figures, nights in blocks:
            for figure, row, (size, window) in zip(figures, nights, self._differences(figures, nights), strict=True):
                self._follow(int(figure), row, size, window)
        for slowdown in self.slowdowns:
            if slowdown.returned and slowdown.ended == night:
                self._learn_habit(slowdown)

    def _forget(self, night: int) -> None:
        """Learn nothing more from figures that nobody measures any more."""
        gone = [at for at, row in enumerate(self.rows) if row.nights and night - row.nights[-1] > GIVEN_UP]
        self._returned[gone] = 0.0
        for learnt in (self._outliers, self._semivariograms, self._without_slope):
            learnt[gone] = np.nan

    def expected(self, figure: int) -> Expected | None:
        """Return what was expected of the figure's last night; None after too few nights."""
        return self.rows[figure].expected()

    def looks_worse(self, figure: int, jobs: Sequence[float], canary: Sequence[float]) -> bool:
        """Return whether a night of these jobs is worth another job."""
        row = self.rows[figure]
        tonight = Row([*row.nights], [*row.values], [*row.canary])
        tonight.append(row.nights[-1] + 1 if row.nights else 0, jobs, canary)
        tidy([tonight])
        if (known := tonight.expected()) is None:
            return False
        above = known.now - known.level
        return math.expm1(above) >= LEAST and above > WORTH_A_JOB * known.scale

    def give_up(self, figure: int, night: int) -> None:
        """End the figure's slowdowns, as nobody measures it any more."""
        for slowdown in self.rows[figure].open:
            slowdown.ended = night
        self.rows[figure].open.clear()

    def _unmoved(self, slowdown: Slowdown) -> tuple[Floats, int]:
        """Return the figure's nights as they were before a slowdown moved them, and how many there are since then."""
        row = self.rows[slowdown.figure]
        nights, numbers = row.clean.copy(), np.array(row.nights[-KEPT:])
        for since, size in slowdown.changes:
            nights[numbers < since] -= size
        return nights, int(np.count_nonzero(numbers >= slowdown.since))

    def _blocks(self, figures: Mapping[int, object]) -> list[tuple[npt.NDArray[np.int64], Floats]]:
        """Return figures of as many nights each, and their winsorised nights, where there are nights enough."""
        by_count: dict[int, list[int]] = {}
        for figure in figures:
            by_count.setdefault(min(KEPT, len(self.rows[figure].nights)), []).append(figure)
        blocks = []
        for count, same in by_count.items():
            nights = tidy([self.rows[figure] for figure in same])
            if count >= FEWEST + SHOWN:
                self._outliers[same] = noise.outlier_share(nights)
                blocks.append((np.array(same), nights))
        around = noise.nights_around(self._outlier_share, self._chance) if blocks else 0
        return [(same, noise.winsorise(nights, around)) for same, nights in blocks]

    def _learn(self, figures: npt.NDArray[np.int64], nights: Floats) -> None:
        """Learn the figures' noise, and the largest differences that came and went."""
        count = nights.shape[1]
        scale = noise.scale(nights[:, -BASELINE - WINDOWS[-1] :])
        self._scale[figures] = scale
        known = nights[:, : count - min(JUDGED, max(0, count - LEARNING))]
        self._semivariograms[figures] = noise.semivariograms(known, scale)
        self._without_slope[figures] = self._semivariograms[figures] - noise.of_slopes(known, scale)
        total = np.concatenate([np.zeros((len(nights), 1)), np.cumsum(nights, axis=1)], axis=1)
        for place, window in enumerate(WINDOWS):
            ends = np.arange(window, count - AFTER + 1)
            if count - window < FEWEST or not len(ends):
                continue
            inside = total[:, ends] - total[:, ends - window]
            others = (total[:, -1:] - inside) / (count - window)
            until = np.minimum(ends + max(AFTER, window // 2), count)
            after = (total[:, until] - total[:, ends]) / (until - ends)
            for number, sign in enumerate(SIGNS):
                difference = sign * (inside / window - others)
                went = sign * (after - others) < difference / 2
                self._returned[figures, number, place] = np.max(np.where(went, difference, 0.0), axis=1)

    @property
    def _outlier_share(self) -> float:
        return float(np.nanmean(self._outliers))

    @property
    def _chance(self) -> float:
        return float(self._limits.min())

    def _error(self, window: int, before: int) -> tuple[float, Floats]:
        """Return the standard error of the mean of the last nights less that of those before, in a figure's scales, by
        the semivariogram of all figures; and the factor by which each figure's is larger.

        Its own semivariogram is of few nights: it counts without what a steady loss makes of it, and only for more than
        that of all.
        """
        of_all = float(noise.contrast_variance(self._of_all, window, before))
        own = noise.contrast_variance(self._without_slope, window, before)
        wider: Floats = np.sqrt(np.fmax(1.0, own / of_all))
        return math.sqrt(of_all), wider

    def _by_chance(self, figures: npt.NDArray[np.int64], count: int) -> Floats:
        """Return how many standard errors chance gives at most, over all windows (Bonferroni)."""
        windows = sum(count - window >= FEWEST for window in WINDOWS)
        degrees_of_freedom = DEGREES_A_NIGHT * (min(count, BASELINE + WINDOWS[-1]) - 1)
        limit: Floats = -stdtrit(degrees_of_freedom, self._limits[figures] / windows)
        return limit

    def _differences(self, figures: npt.NDArray[np.int64], nights: Floats) -> list[tuple[float, int]]:
        """Return the difference of each figure's last nights that exceeds its limits most, and how many nights these
        are; 0 nights where none does.
        """
        count = nights.shape[1]
        chance, outliers = self._by_chance(figures, count), self._outlier_share
        best = np.ones(len(figures))
        found = [(0.0, 0)] * len(figures)
        went = np.zeros((len(SIGNS), len(self.rows)))
        for place, window in enumerate(WINDOWS):
            dropped = noise.most_outliers(window, outliers, self._chance)
            if count - window < FEWEST or dropped >= window:
                continue
            before = nights[:, max(0, count - window - BASELINE) : count - window]
            error, wider = self._error(window, before.shape[1])
            lately = noise.scale_lately(nights[:, -max(noise.LATELY, window) - 1 :])
            errors = error * np.maximum(self._scale[figures], lately)
            for number, sign in enumerate(SIGNS):
                went[number] = np.maximum(went[number], self._returned[:, number, place] / self._scale / error)
                known = np.maximum(went[number, figures], self._of_system(went[number], float(chance.min())))
                known = np.where(known > KNOWN * chance, MARGIN * known, 0.0)
                limit = np.maximum(chance * wider[figures], known)
                last = np.sort(sign * nights[:, -window:], axis=1)
                most = last[:, -dropped - 1] + WORST * self._scale[figures]
                last[:, -dropped:] = np.minimum(last[:, -dropped:], most[:, None])
                size = last.mean(axis=1) - sign * before.mean(axis=1)
                exceeds = np.where(
                    np.expm1(size) >= (LEAST if count > EARLY else LEAST_EARLY), size / errors / limit, 0.0
                )
                for each in np.flatnonzero(exceeds > best):
                    best[each], found[each] = exceeds[each], (sign * float(size[each]), window)
        return found

    def _of_system(self, went: Floats, chance: float) -> float:
        """Return the RETURNED largest of the tests' differences that came and went; where few tests have any beyond
        chance, it is no habit of the system, and counts for little more than chance.
        """
        of_tests = np.zeros(self._tests.max() + 1)
        np.maximum.at(of_tests, self._tests, went)
        of_tests.sort()
        known = float(of_tests[-min(RETURNED, len(of_tests))])
        few = np.count_nonzero(of_tests > KNOWN * chance) <= max(RETURNED, RETURNED_SHARE * len(of_tests))
        return min(known, OF_FEW * chance) if few else known

    def _follow(self, figure: int, nights: Floats, size: float, window: int) -> None:
        """Note a return of a figure's last slowdown, or a change of that size in that many last nights, winsorised."""
        row = self.rows[figure]
        if window and not row.is_measured(size, window):
            size, window = 0.0, 0
        last = row.open[-1] if row.open else None
        if last and self._has_returned(row, last, nights, size):
            count, _ = self._beginning(row.clean, -last.size, window or last.nights, least=1)
            row.end(last, row.nights[-count])
            return
        if not window:
            return
        count, size = self._beginning(nights, size, window)
        since = row.nights[-count]
        continues = last is not None and (size < 0 or since <= last.found or creeps(*self._unmoved(last), count))
        row.move(since, size)
        if last and continues:
            last.changes.append((since, size))
        elif size < 0:
            self.gains.append(Gain(figure, since, row.nights[-1], size))
        elif gain := self._undone(figure, since, size):
            self.gains.remove(gain)
        else:
            row.open.append(Slowdown(figure, since, row.nights[-1], count, [(since, size)]))
            self.slowdowns.append(row.open[-1])

    def _undone(self, figure: int, since: int, size: float) -> Gain | None:
        """Return the figure's last gain, if a change takes it back before as many nights as make a level usual."""
        gain = next((one for one in reversed(self.gains) if one.figure == figure), None)
        if not gain or since >= gain.since + FEWEST:
            return None
        return gain if size < max(-MARGIN * gain.size, math.log1p(LEAST) - gain.size) else None

    def _learn_habit(self, slowdown: Slowdown) -> None:
        """Put it back into the nights with those alike, if it is the figure's second one lately, or the RETURNED of
        several tests.
        """
        alike = [
            one
            for one in self.slowdowns
            if one.returned
            and one.without > slowdown.without - HABIT
            and max(one.size, slowdown.size) < ALIKE * min(one.size, slowdown.size)
        ]
        own = [one for one in alike if one.figure == slowdown.figure]
        for one in own if times(own) > 1 else alike if times(alike) >= RETURNED else ():
            if one in self.rows[one.figure].mended:
                self.rows[one.figure].put_back(one)

    @staticmethod
    def _has_returned(row: Row, slowdown: Slowdown, nights: Floats, change: float) -> bool:
        """Return whether most of a slowdown is gone, by a change or by as many nights as have shown it."""
        rest = min(slowdown.size / 2, max(slowdown.size / 4, math.log1p(LEAST)))
        if slowdown.size + change < rest:
            return True
        since = sum(night >= slowdown.since for night in row.nights)
        before = nights[: max(0, len(nights) - since)][-BASELINE:]
        if not len(before) or row.nights[-1] - slowdown.found < AFTER:
            return False
        left = float(np.median(nights[-slowdown.nights :]) - np.median(before)) + slowdown.size
        return left < rest

    @staticmethod
    def _beginning(nights: Floats, size: float, window: int, least: int = SHOWN) -> tuple[int, float]:
        """Return the number of last nights, at least so many, that a change speaks most for, and the median of its
        size.
        """
        before = nights[: len(nights) - window][-BASELINE:].mean()
        most = min(2 * window, len(nights) - FEWEST)
        counts = np.arange(1, most + 1)
        speaks = math.copysign(1.0, size) * np.cumsum((nights - before)[::-1][:most]) / np.sqrt(counts)
        count = least + int(np.argmax(speaks[least - 1 :]))
        return count, float(np.median(nights[-count:]) - np.mean(nights[:-count][-BASELINE:]))
