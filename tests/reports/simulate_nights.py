"""How often the judging of nights raises a false alarm, and how soon it finds a slowdown, on series with known truth.

    python tests/reports/simulate_nights.py                      200 figures, 3 years; about ten minutes
    python tests/reports/simulate_nights.py --figures 40 --years 1 --normal 0.005 0.01
    python tests/reports/simulate_nights.py --write results/reframe/results.db    the noise of other jobs from now on

Noise: the jobs of measured_noise.csv drawn at random, each about its own figure's median; of these jobs 5 % are slower
besides, by 15 % on average (exponential), and every figure gets 1 % slower a month. A figure has a reference of its
first 20 nights. A night is --jobs jobs, and as many more up to three as ci/nightly would run, as it looks worse. Jobs
of a night differ as those of several nights do; with --shared the noise that was measured is the same for all of it.
Beside ours stands the rule of thumb that one often finds: slower on two nights in a row, or one night beyond 5 MAD.
"""

import argparse
import csv
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from reports.nights import evidence
from reports.nights.figures import figures, share
from reports.nights.history import history, systems_in
from reports.nights.judge import alarm_limit
from reports.nights.reference import reference_of
from reports.nights.report import named
from reports.nights.watch import Watch
from reports.run_reports import sessions

MEASURED = Path(__file__).with_name("measured_noise.csv")
DRIFT_A_NIGHT = 0.01 / 30
OFF, OFF_BY = 0.05, 0.15
REFERENCE, MOST_JOBS = 20, 3
SETTLED = 90
"""Nights after the reference before a slowdown comes."""


def residuals(path: Path = MEASURED) -> dict[str, np.ndarray]:
    """Of every figure, as logarithms about the median, by its name."""
    found: dict[str, list[float]] = {}
    with path.open() as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            found.setdefault(row["figure"], []).append(math.log(float(row["value"])))
    return {name: np.array(logs) - median(logs) for name, logs in found.items()}


def write(databases: list[Path], path: Path, first: int) -> None:
    """Every judged figure that raises alarms and has 20 jobs or more in the first nights of a database."""
    rows, devices = [], set()
    for database in databases:
        for system in sorted(systems_in(sessions(database))):
            nights = history(database, system).nights[:first]
            devices |= {device for night in nights for job in night.jobs for device in job.devices}
            every = figures(nights)
            names = named(one.key for one in every)
            for one in every:
                values = [value for night in one.values for value in night]
                beside = {other.figure for other in every if other.key == one.key}
                if share(one.figure, beside) == 1 and len(values) >= REFERENCE:
                    rows += [(f"{system} {names[one.key]} {one.figure}", f"{value:.6g}") for value in values]
    with path.open("w") as file:
        file.write(f"# Jobs of nothing changed on {' and '.join(sorted(devices))}, by simulate_nights.py --write.\n")
        csv.writer(file, lineterminator="\n").writerows([("figure", "value"), *rows])


@dataclass
class Series:
    """A figure whose jobs are drawn. step: how much slower from night `since` on; shared: noise is a night's."""

    noise: np.ndarray
    random: np.random.Generator
    step: float = 0.0
    since: int = 1 << 30
    shared: bool = False
    tonight: tuple[int, float] = (-1, 0.0)

    def job(self, night: int) -> float:
        if not self.shared or self.tonight[0] != night:
            self.tonight = night, float(self.random.choice(self.noise))
        value = self.tonight[1] + DRIFT_A_NIGHT * night
        if self.random.random() < OFF:
            value += float(self.random.exponential(OFF_BY))
        return value + (math.log1p(self.step) if night >= self.since else 0.0)


class OfThumb:
    """Slower on two nights in a row, beyond the interval and by 2 %, or one night beyond 5 MAD."""

    def __init__(self, usual: evidence.Expected, mad: float) -> None:
        self._usual, self._mad, self._before = usual, mad, False

    def add(self, jobs: list[float]) -> bool:
        effect = median(jobs)
        slower = effect > evidence.interval(self._usual, len(jobs)) and effect >= evidence.LEAST_EFFECT
        alarm = (slower and self._before) or (slower and effect > 5 * self._mad)
        self._before = slower
        return alarm


def follow(series: Series, nights: int, jobs: int, limit: float) -> tuple[list[int], list[int], int]:
    """The nights of new alarms by ours and by the rule of thumb, and how many jobs were run."""
    first = [[series.job(night) for _ in range(jobs)] for night in range(REFERENCE)]
    known = reference_of("s", [[math.exp(value) for value in night] for night in first])
    level, mad = math.log(known.median), known.mad / known.median
    usual = evidence.from_reference(known)
    watch, thumb = Watch(usual, limit), OfThumb(usual, mad)
    for night in first:
        watch.add([value - level for value in night])
    ours, thumbs, run, sounding = list[int](), list[int](), 0, False
    for night in range(REFERENCE, nights):
        values = [series.job(night) - level for _ in range(jobs)]
        alone = list(values)
        while len(values) < MOST_JOBS and watch.looks_worse(values):
            values.append(series.job(night) - level)
        run += len(values)
        alarm = watch.add(values)
        if alarm and alarm[1]:
            ours.append(night)
        sounds = thumb.add(alone)
        if sounds and not sounding:
            thumbs.append(night)
        sounding = sounds
    return ours, thumbs, run


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--figures", type=int, default=200)
    options.add_argument("--nights", type=int, default=365, help="that are judged, for false alarms")
    options.add_argument("--years", type=int, default=3, help="of so many nights, each with other noise")
    options.add_argument("--jobs", type=int, nargs="+", default=[1, 3], help="a night")
    options.add_argument("--shared", action="store_true", help="all jobs of a night have the same noise")
    options.add_argument("--noise", type=Path, default=MEASURED)
    options.add_argument("--write", type=Path, nargs="+", metavar="DATABASE",
                         help="take the noise from these results databases, and do nothing else")  # fmt: skip
    options.add_argument("--first", type=int, default=40, help="nights of each of them only, as before a fault")
    options.add_argument("--normal", type=float, nargs="*", help="normal noise of such scales instead")
    given = options.parse_args()
    if given.write:
        write(given.write, given.noise, given.first)
        return
    if given.normal:
        draws = np.random.default_rng(5)
        noises = {f"normal, {one:g}": draws.normal(0, one, 100_000) for one in given.normal}
    else:
        noises = residuals(given.noise)
    limit = alarm_limit(given.figures)
    for jobs in given.jobs:
        report(noises, given.figures, given.nights, given.years, jobs, limit, given.shared)


def report(
    noises: dict[str, np.ndarray], count: int, nights: int, years: int, jobs: int, limit: float, shared: bool
) -> None:
    """Print what is found of so many jobs a night, on so many figures."""
    names, began, alarms, run = list(noises), time.monotonic(), np.zeros(2), 0
    say(f"== {jobs} job(s) a night, {count} figures with the noise of {len(names)}")
    for year in range(years):
        for number in range(count):
            series = Series(noises[names[number % len(names)]], np.random.default_rng([year, number]), shared=shared)
            ours, thumbs, more = follow(series, REFERENCE + nights, jobs, limit)
            alarms += len(ours), len(thumbs)
            run += more
    ours_a_year, thumbs_a_year = alarms * evidence.NIGHTS_A_YEAR / nights / years
    say(f"false alarms a year and system: {ours_a_year:.2f}, of {alarms[0]:.0f} in {years} times {nights} nights; "
        f"by the rule of thumb {thumbs_a_year:.0f}")  # fmt: skip
    say(f"jobs a night and figure: {run / count / nights / years:.2f}; {time.monotonic() - began:.0f} s")
    for step, within in ((0.05, 3), (0.02, 10)):
        shares = {}
        for index, name in enumerate(names):
            since, trials = REFERENCE + SETTLED, max(20, count // len(names))
            found = [
                follow(Series(noises[name], np.random.default_rng([99, index, trial]), step, since, shared),
                       since + within, jobs, limit)[0]
                for trial in range(trials)
            ]  # fmt: skip
            shares[name] = sum(any(since <= night for night in one) for one in found) / trials
        say(f"{step:.0%} slower, found within {within} nights: {sum(shares.values()) / len(shares):.0%}")
        for name, part in sorted(shares.items(), key=lambda one: scale(noises[one[0]])):
            say(f"    {part:4.0%}  {name}, whose jobs vary by {scale(noises[name]):.2%}")


def scale(noise: np.ndarray) -> float:
    """Of the jobs' noise, by its median absolute deviation."""
    return evidence.SCALE_OF_MAD * float(np.median(np.abs(noise)))


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
