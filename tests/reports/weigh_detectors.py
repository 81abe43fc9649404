"""Weigh detectors of well-kept libraries against Par4D's own, on the same nights, asked every second night.

    pip install --no-deps --target DIRECTORY apache-otava changepoint changepoint-online patsy ruptures \\
        sortedcontainers statsmodels
    OMP_NUM_THREADS=1 PYTHONPATH=DIRECTORY python tests/reports/weigh_detectors.py

in the project's environment, which stays as it is: Par4D depends on none of them, and a method whose library isn't
there is left out. It takes 17 minutes of one core; --years 1 --trials 5 --every 10 takes two.

noises.py has the noises, simulate_nights.py the losses. Libraries have the settings that their maintainers' examples
have. Every method is asked on the same nights; its alarm is a change for the worse, by systems.references.LEAST or
more, that it hasn't reported before, not even SAME nights earlier or later. Alarms of figures that began together are
one episode. A loss is found by the first alarm of its figure since it began: the second share of each cell is that of
figures without any loss that raise one in the same nights. Seconds are of one night, of 200 figures from all nights of
a year. scipy has no detector of changes: no CUSUM, nor a bootstrap of blocks, so that the interval of theilslopes is
for independent nights. statsmodels has tests of a whole series, but none that may be asked again every night.
"""

import argparse
import importlib
import inspect
import math
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, TypeAlias

import numpy as np
from noises import Floats, draw
from simulate_nights import ROWS, SETTLED, Planted
from tabulate import tabulate

from engine.result.provenance import processor
from reports.nights import canary, detector, levels, noise, shape
from reports.nights.detector import NIGHTS_A_YEAR, Detector, false_alarm_limit
from reports.nights.episodes import group
from reports.nights.levels import FEWEST, Slowdown
from systems.references import LEAST

SEED = 777
"""No noise of simulate_nights.py's seed is drawn here."""
QUIET = ("gauss", "ar0.7", "ar0.95", "month", "weekly3", "walk", "out5", "sticky10", "out5runs")
LOSSES = ("10 %, gauss", "5 %, gauss", "5 %, ar0.7", "3 %, gauss")
LOSSES += ("10 % over 90 nights, gauss", "10 % over 90 nights, weekly3", "5 % over 30 nights, gauss")
FIGURES, MANY = 20, 200
"""Figures of a system, and of the night whose seconds are measured."""
SAME = 7
"""Nights by which the beginning of a change may move from one report to the next."""
P = 0.001
"""Probability of chance from which Otava reports a change, by default, and here any other test as well."""

Reports: TypeAlias = Iterator[tuple[int, list[int]]]
"""A night that was asked, and the first nights of all changes for the worse that are reported then."""


def worse(nights: Floats, changes: Iterable[int]) -> list[int]:
    """Return the changes after which the mean, up to the next one, is worse by LEAST or more."""
    ends = [0, *sorted(int(change) for change in changes), len(nights)]
    means = [nights[first:end].mean() if end > first else math.nan for first, end in pairwise(ends)]
    return [ends[at] for at in range(1, len(means)) if means[at] - means[at - 1] >= math.log1p(LEAST)]


def scale(nights: Floats) -> float:
    return max(float(noise.scale_lately(nights[None])[0]), noise.LEAST_SCALE)


def otava(nights: Floats, asked: range, library: Any, p: float = P) -> Reports:
    """E-divisive in windows of 50 nights with Student's t test, as Apache Otava has it (Hunter's algorithm)."""
    for night in asked:
        known = np.exp(nights[: night + 1]).tolist()
        found, _ = library.compute_change_points(known, max_pvalue=p)  # which takes no arrays
        yield night, worse(nights[: night + 1], [change.index for change in found])


def pelt(nights: Floats, asked: range, library: Any, kernel: str = "linear") -> Reports:
    """PELT of ruptures, compiled: least squares ("linear") with the penalty of its guide (BIC), or "rbf" with that of
    its README.
    """
    for night in asked:
        known = nights[: night + 1]
        penalty = math.log(len(known)) * scale(known) ** 2 if kernel == "linear" else 10.0
        ends = library.KernelCPD(kernel=kernel, min_size=3).fit(known).predict(pen=penalty)
        yield night, worse(known, ends[:-1])


def cusum(nights: Floats, asked: range, library: Any) -> Reports:
    """CUSUM test of statsmodels over the nights since the last change, which lies where the sum is largest."""
    changes = [0]
    for night in asked:
        known = nights[changes[-1] : night + 1]
        residuals = known - known.mean()  # of the regression on a constant
        if len(known) >= FEWEST and library.breaks_cusumolsresid(residuals, ddof=1)[1] < P:
            changes.append(changes[-1] + int(np.argmax(np.abs(np.cumsum(residuals)))) + 1)
        yield night, worse(nights[: night + 1], changes[1:])


def glr(nights: Floats, asked: range, library: Any) -> Reports:
    """CUSUM for every size of change and any level before it (FOCuS), with the variance learnt so far."""
    changes, last = list[int](), 0
    online = library.Focus(library.Gaussian())
    for night in range(len(nights)):
        online.update(nights[night])
        if night in asked and online.statistic() / scale(nights[: night + 1]) ** 2 >= 13:  # as in its README
            last += max(1, int(online.changepoint()["changepoint"]))
            changes.append(last)
            online = library.Focus(library.Gaussian())
            for value in nights[last : night + 1]:
                online.update(value)
        if night in asked:
            yield night, worse(nights[: night + 1], changes)


def bayes(nights: Floats, asked: range, library: Any) -> Reports:
    """Bayesian online change points: the beginning of the likeliest run, where one run in a year is expected."""
    online = library.Bocpd(prior=library.NormalGamma(), lam=NIGHTS_A_YEAR)
    early, begun = nights[:FEWEST], set[int]()
    for night, value in enumerate((nights - np.median(early)) / scale(early)):
        run = night + 1 - int(np.argmax(online.step(value)))
        begun = {run, *(first for first in begun if first < run)}
        if night in asked:
            yield night, worse(nights[: night + 1], begun - {0})


def theil_sen(nights: Floats, asked: range, library: Any) -> Reports:
    """Slope of the last 90 nights by scipy, where its interval is above 0 and it has lost LEAST."""
    for night in asked:
        known = nights[: night + 1][-90:]
        slope = library.theilslopes(known, alpha=1 - P)
        lost = slope.low_slope > 0 and slope.slope * (len(known) - 1) >= math.log1p(LEAST)
        yield night, [night + 1 - len(known)] if lost else []


@dataclass(frozen=True, slots=True)
class Method:
    name: str
    module: str
    reports: Callable[..., Reports] | None = None
    """None: Par4D's own, of all figures together."""
    options: tuple[Any, ...] = ()

    @property
    def lines(self) -> int:
        """Number of lines that the project has, or would have to have, for it."""
        own = [detector, levels, noise, canary, shape] if self.reports is None else [self.reports]
        return sum(bool(line.strip()) for part in own for line in inspect.getsource(part).splitlines())

    def alarms(self, values: Floats, asked: range) -> list[Slowdown]:
        """Return the alarms of these figures, in the order in which they were found."""
        if self.reports is None:
            return self._own(values, asked)
        found, library = list[Slowdown](), importlib.import_module(self.module)
        for figure, nights in enumerate(values):
            seen = set[int]()
            for night, changes in self.reports(nights, asked, library, *self.options):
                for since in changes:
                    if not any(abs(since - before) <= SAME for before in seen):
                        found.append(Slowdown(figure, since, night, 1, []))
                seen.update(changes)
        return sorted(found, key=lambda alarm: alarm.found)

    @staticmethod
    def _own(values: Floats, asked: range) -> list[Slowdown]:
        own = Detector([false_alarm_limit(len(values))] * len(values))
        for night in range(values.shape[1]):
            own.add(night, {figure: ([float(value)], []) for figure, value in enumerate(values[:, night])})
        for slowdown in own.slowdowns:
            slowdown.found = next(night for night in asked if night >= slowdown.found)
        return own.slowdowns


METHODS = (
    Method("Par4D", "reports.nights.detector"),
    Method("Otava", "otava.analysis", otava),
    Method("Otava, Par4D's limit", "otava.analysis", otava, (false_alarm_limit(FIGURES),)),
    Method("PELT, least squares", "ruptures", pelt),
    Method("PELT, rbf", "ruptures", pelt, ("rbf",)),
    Method("CUSUM (statsmodels)", "statsmodels.stats.diagnostic", cusum),
    Method("GLR (FOCuS)", "changepoint_online", glr),
    Method("Bayesian online", "changepoint", bayes),
    Method("Theil-Sen (scipy)", "scipy.stats", theil_sen),
)


def asked_nights(nights: int, every: int) -> range:
    return range(FEWEST + (nights - 1 - FEWEST) % every, nights, every)


def drawn(name: str, figures: int, nights: int, number: int) -> Floats:
    values, _ = draw(name, figures, nights, np.random.default_rng([SEED, number, zlib.crc32(name.encode())]))
    return values


def episodes_a_year(method: Method, name: str, words: argparse.Namespace) -> str:
    nights = FEWEST + NIGHTS_A_YEAR
    every = (drawn(name, FIGURES, nights, year) for year in range(words.years))
    counts = [len(group(method.alarms(values, asked_nights(nights, words.every)))) for values in every]
    return f"{sum(counts) / words.years:g}"


def losses_found(method: Method, row: Planted, words: argparse.Namespace) -> str:
    """Return the share found, that of figures without any loss in the same nights, and the median of nights."""
    nights, hits, others = SETTLED + row.within, list[int](), list[bool]()
    for trial in range(words.trials):
        values = drawn(row.noise, FIGURES, nights, 1000 + trial)
        values[0] += math.log1p(row.size) * np.clip((np.arange(nights) - SETTLED + 1) / row.ramp, 0, 1)
        followed = values if method.reports is None else values[:2]
        first = dict[int, int]()
        for alarm in method.alarms(followed, asked_nights(nights, words.every)):
            if alarm.found >= SETTLED:
                first.setdefault(alarm.figure, alarm.found - SETTLED + 1)
        hits += [first[0]] if 0 in first else []
        others += [figure in first for figure in range(1, len(followed))]
    after = f", {median(hits):g}" if hits else ""
    return f"{len(hits) / words.trials:.0%} ({np.mean(others):.0%}){after}"


def seconds_a_night(method: Method) -> float:
    """Return the processor's seconds of one night, from all nights of a year."""
    values = drawn("gauss", MANY, FEWEST + NIGHTS_A_YEAR, 0)
    began = time.process_time()
    method.alarms(values, asked_nights(values.shape[1], values.shape[1]))
    return time.process_time() - began


def local_level_seconds(library: Any) -> float:
    """Return the processor's seconds of a local level of each of MANY figures by statsmodels."""
    values, began = drawn("gauss", MANY, FEWEST + NIGHTS_A_YEAR, 0), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a level that never varies
        for nights in values:
            library.UnobservedComponents(nights, "llevel").fit(disp=False)
    return time.process_time() - began


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--years", type=int, default=2, help="of nights without any change")
    options.add_argument("--trials", type=int, default=30, help="of each loss that is planted")
    options.add_argument("--every", type=int, default=2, metavar="NIGHTS", help="nights from one question to the next")
    options.add_argument("--method", nargs="+", choices=[method.name for method in METHODS], help="these alone")
    words = options.parse_args()
    quiet, losses = list[list[str]](), list[list[str]]()
    for method in (one for one in METHODS if not words.method or one.name in words.method):
        try:
            importlib.import_module(method.module)
        except ImportError:
            sys.stderr.write(f"{method.name} is left out: install its library as the beginning of this file says\n")
            continue
        costs = [f"{seconds_a_night(method):.1f}", str(method.lines)]
        quiet.append([method.name, *(episodes_a_year(method, name, words) for name in QUIET), *costs])
        losses.append([method.name, *(losses_found(method, ROWS[name], words) for name in LOSSES)])
        sys.stderr.write(" | ".join([*quiet[-1], *losses[-1][1:]]) + "\n")
    sys.stdout.write(
        f"Episodes a year of {FIGURES} figures in {words.years} years without any change\n\n"
        f"{tabulate(quiet, ['method', *QUIET, 'seconds', 'lines'], 'github', disable_numparse=True)}\n\n"
        f"Share of {words.trials} losses found (of figures without any), after how many nights\n\n"
        f"{tabulate(losses, ['method', *LOSSES], 'github', disable_numparse=True)}\n\n"
        f"Asked every {words.every} nights, on {processor()}.\n"
    )
    with suppress(ImportError):
        seconds = local_level_seconds(importlib.import_module("statsmodels.tsa.statespace.structural"))
        sys.stdout.write(f"Local levels by statsmodels, which has no test of their change, take {seconds:.1f} s.\n")


if __name__ == "__main__":
    main()
