"""How often the judging of nights raises a false alarm, and how soon it finds a slowdown, on series with known truth.

    python tests/reports/simulate_nights.py                         the noise that was measured on local and vcluster
    python tests/reports/simulate_nights.py --figures 40 --nights 120 --quick

Noise: the residuals of measured.csv drawn at random, each about its own figure's median; of these jobs 5 % are slower
besides, by 15 % on average (exponential), and every figure gets 1 % slower a month. A figure has a reference of its
first 20 nights. A night is --jobs jobs, and as many more up to five as ci/nightly would run, as it looks worse.
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
from reports.nights.judge import Watch, alarm_limit

MEASURED = Path(__file__).with_name("measured_noise.csv")
DRIFT_A_NIGHT = 0.01 / 30
OFF, OFF_BY = 0.05, 0.15
REFERENCE, MOST_JOBS = 20, 5
SETTLED = 40
"""Nights after the reference before a slowdown comes."""


def residuals(path: Path = MEASURED) -> dict[str, np.ndarray]:
    """Of every figure, as logarithms about the median, by its name."""
    found: dict[str, list[float]] = {}
    with path.open() as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            found.setdefault(row["figure"], []).append(math.log(float(row["value"])))
    return {name: np.array(logs) - median(logs) for name, logs in found.items()}


@dataclass
class Series:
    """A figure whose jobs are drawn. step: how much slower from night `since` on."""

    noise: np.ndarray
    random: np.random.Generator
    step: float = 0.0
    since: int = 1 << 30

    def job(self, night: int) -> float:
        value = float(self.random.choice(self.noise)) + DRIFT_A_NIGHT * night
        if self.random.random() < OFF:
            value += float(self.random.exponential(OFF_BY))
        return value + (math.log1p(self.step) if night >= self.since else 0.0)


class OfThumb:
    """Slower on two nights in a row, beyond the interval and by 2 %, or one night beyond 5 MAD."""

    def __init__(self, usual: evidence.Usual, mad: float) -> None:
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
    every = [value for night in first for value in night]
    level = median(every)
    mad = median(abs(value - level) for value in every)
    usual = evidence.from_reference(mad, 1.0, len(every))
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
    options.add_argument("--noise", type=Path, default=MEASURED)
    options.add_argument("--normal", type=float, nargs="*", help="normal noise of such scales instead")
    given = options.parse_args()
    named = residuals(given.noise) if not given.normal else {}
    if given.normal:
        draws = np.random.default_rng(5)
        named = {f"normal {scale:g}": draws.normal(0, scale, 100_000) for scale in given.normal}
    limit = alarm_limit(given.figures)
    for jobs in given.jobs:
        report(named, given.figures, given.nights, given.years, jobs, limit)


def report(named: dict[str, np.ndarray], figures: int, nights: int, years: int, jobs: int, limit: float) -> None:
    say = sys.stdout.write
    names = list(named)
    began = time.monotonic()
    say(f"== {jobs} job(s) a night, {figures} figures like {len(names)} measured ones\n")
    counts = np.zeros(2)
    run = 0
    for year in range(years):
        for number in range(figures):
            series = Series(named[names[number % len(names)]], np.random.default_rng([year, number]))
            ours, thumbs, more = follow(series, REFERENCE + nights, jobs, limit)
            counts += len(ours), len(thumbs)
            run += more
    scale = 365 / nights / years
    say(f"false alarms a year and system: {counts[0] * scale:.2f} (of {counts[0]:.0f} seen in {years} x {nights} "
        f"nights), by the rule of thumb {counts[1] * scale:.0f}; jobs a night and figure "
        f"{run / figures / nights / years:.2f}; {time.monotonic() - began:.0f} s\n")  # fmt: skip
    for step, within in ((0.05, 3), (0.02, 10)):
        shares = {}
        for index, name in enumerate(names):
            hits = total = 0
            for number in range(max(20, figures // len(names))):
                since = REFERENCE + SETTLED
                series = Series(named[name], np.random.default_rng([99, index, number]), step, since)
                ours, _, _ = follow(series, since + within, jobs, limit)
                total += 1
                hits += any(since <= night for night in ours)
            shares[name] = hits / total
        mean = sum(shares.values()) / len(shares)
        say(f"{step:.0%} slower, found within {within} nights: {mean:.0%} of all\n")
        for name, share in shares.items():
            mad = evidence.SCALE_OF_MAD * float(np.median(np.abs(named[name])))
            say(f"    {share:4.0%}  {name} (scale {mad:.2%})\n")


if __name__ == "__main__":
    main()
