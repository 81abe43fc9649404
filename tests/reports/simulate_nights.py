"""Simulate how often nights without any change raise an alarm, and how soon a slowdown is found, in five noises.

    python tests/reports/simulate_nights.py                      200 figures, 20 years of each noise; an hour
    python tests/reports/simulate_nights.py --noise measured common --years 10 --jobs 3
    python tests/reports/simulate_nights.py --write results/reframe/results.db    the noise of other jobs from now on

independent: nights differ by 1.5 % (all scales are standard deviations) and jobs of a night by 0.5 % more. rho-R: a
night's noise has an autocorrelation of R. common: a mood of 1.5 %, correlated by 0.7, which figures
share by 0.5 to 1.2 and the canary wholly, to 0.3 %; beside it nights of a figure differ by 0.5 %. measured: the jobs of
measured_noise.csv, drawn at random, each about its own figure's median. In all of them 5 % of jobs are slower besides,
by 15 % on average (exponential), and every figure gets 1 % slower a month. A night is --jobs jobs, and as many more up
to three as ci/nightly would run, as it looks worse. Slowdowns come after 110 nights, or after so many as is said.

False alarms pass if the upper end of what their number may be (Poisson, 95 %, one-sided) is below 1 a year of a system,
fail if the lower one is above, and are undecided else. The exit code is 1 if a noise fails, 2 if one is undecided.
"""

import argparse
import csv
import math
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from statistics import median

import numpy as np
from scipy.special import chdtri

from engine.result.gate import Interval, Outcome, at_most
from reports.nights import detector
from reports.nights.detector import FEWEST, NIGHTS_A_YEAR, Follower, LevelChange
from reports.nights.judge import STEADIER, collect_figures
from reports.nights.report import name_tests
from reports.read.history import histories
from reports.read.run_reports import sessions

MEASURED = Path(__file__).with_name("measured_noise.csv")
KINDS = ("independent", "rho-0.3", "rho-0.5", "rho-0.7", "common", "measured")
NIGHT, JOB, OWN, CANARY = 0.015, 0.005, 0.005, 0.003
MOOD_RHO = 0.7
DRIFT_A_NIGHT = 0.01 / 30
OFF, OFF_BY = 0.05, 0.15
MOST_JOBS = 3
MOST_A_YEAR = 1.0
SEED = 7193
"""No noise of this seed was looked at before the detector's numbers were fixed."""
SETTLED = 110
"""Nights before a slowdown comes."""
SLOWDOWNS = ((0.05, 3), (0.05, 5), (0.05, 10), (0.05, 30), (0.03, 10), (0.03, 30), (0.02, 30))
"""A slowdown of this size is to be found within so many nights."""
EARLY = (25, 40, 60)
"""Slowdowns by 5 % also come after so few nights, and are to be found within 30 more."""

Job = Callable[[int], tuple[float, float | None]]
"""Draws a job of a night, and what the canary does in it."""


@cache
def residuals(path: Path = MEASURED) -> dict[str, np.ndarray]:
    """Read the logarithms of every figure about their median, by its name."""
    found: dict[str, list[float]] = {}
    with path.open() as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            found.setdefault(row["figure"], []).append(math.log(float(row["value"])))
    return {name: np.array(logs) - median(logs) for name, logs in found.items()}


def write(databases: list[Path], path: Path, first: int) -> None:
    """Write every judged figure that raises alarms and has 20 jobs or more in the first nights of a database."""
    rows, devices = [], set()
    for database in databases:
        for found in histories([sessions(database)]):
            nights = found.nights[:first]
            devices |= {job.state["device"] for night in nights for job in night.jobs if "device" in job.state}
            every = collect_figures(nights)
            names = name_tests(found)
            for one in every:
                values = [value for night in one.values for value in night]
                beside = {other.figure for other in every if other.key == one.key}
                if STEADIER.get(one.figure) not in beside and len(values) >= FEWEST:
                    rows += [(f"{found.system} {names[one.key]} {one.figure}", f"{value:.6g}") for value in values]
    with path.open("w") as file:
        file.write(f"# Jobs of nothing changed on {' and '.join(sorted(devices))}, by simulate_nights.py --write.\n")
        csv.writer(file, lineterminator="\n").writerows([("figure", "value"), *rows])


def autocorrelated(nights: int, correlation: float, scale: float, random: np.random.Generator) -> np.ndarray:
    """Draw the noise of nights, each correlated with the one before."""
    new = random.normal(size=nights)
    found = [new[0]]
    for one in new[1:]:
        found.append(correlation * found[-1] + math.sqrt(1 - correlation**2) * one)
    return scale * np.array(found)


def jobs_of(kind: str, number: int, year: int, nights: int) -> Job:
    random = np.random.default_rng([SEED, year, number])
    if kind == "measured":
        noise = list(residuals().values())[number % len(residuals())]
        return lambda night: (float(random.choice(noise)), None)
    if kind == "common":
        mood = autocorrelated(nights, MOOD_RHO, NIGHT, np.random.default_rng([SEED, year]))
        own, part = autocorrelated(nights, 0.0, OWN, random), random.uniform(0.5, 1.2)
        return lambda night: (
            part * mood[night] + own[night] + random.normal(0, JOB),
            mood[night] + random.normal(0, CANARY),
        )
    own = autocorrelated(nights, float(kind.removeprefix("rho-")) if kind.startswith("rho-") else 0.0, NIGHT, random)
    return lambda night: (own[night] + random.normal(0, JOB), None)


def follow(
    kind: str, number: int, year: int, nights: int, jobs: int, limit: float, step: float = 0.0, since: int = 1 << 30
) -> list[tuple[int, LevelChange]]:
    """Find the changes in a figure's year, each with its night. step: the slowdown from night `since` on."""
    drawn, random, watched = (
        jobs_of(kind, number, year, nights),
        np.random.default_rng([SEED, year, number, 1]),
        Follower(limit),
    )
    found = []
    for night in range(nights):
        values, canary = list[float](), list[float]()
        while len(values) < jobs or (len(values) < MOST_JOBS and watched.looks_worse(values, canary)):
            value, of_canary = drawn(night)
            value += DRIFT_A_NIGHT * night + (math.log1p(step) if night >= since else 0.0)
            values.append(value + (float(random.exponential(OFF_BY)) if random.random() < OFF else 0.0))
            canary += [] if of_canary is None else [of_canary]
        if change := watched.add(values, canary):
            found.append((night, change))
    return found


def alarms(kind: str, years: int, count: int, nights: int, jobs: int, limit: float, number: int) -> int:
    """Count the alarms that one figure of a system raises in these years without any change."""
    each = (follow(kind, number, year, FEWEST + nights, jobs, limit) for year in range(years))
    return sum(change.size > 0 for found in each for _, change in found)


def is_found(kind: str, step: float, within: int, since: int, jobs: int, limit: float, number: int) -> bool:
    found = follow(kind, number, 1000, since + within, jobs, limit, step, since)
    return any(night >= since and change.size > 0 for night, change in found)


def of_years(count: int, years: float) -> Interval:
    """Return the interval of the mean number a year, 95 % at each end, by the count of some years (Poisson)."""
    low = chdtri(2 * count, 0.95) / 2 if count else 0.0
    return Interval(float(low) / years, float(chdtri(2 * count + 2, 0.05)) / 2 / years)


def report(kind: str, jobs: int, count: int, nights: int, years: int, trials: int, limit: float) -> Outcome:
    """Print what is found of that noise, and return the outcome."""
    began = time.monotonic()
    slowdowns = [(*slow, SETTLED) for slow in SLOWDOWNS] + [(0.05, 30, since) for since in EARLY]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        false = sum(pool.map(partial(alarms, kind, years, count, nights, jobs, limit), range(count), chunksize=4))
        found = [
            sum(pool.map(partial(is_found, kind, *slow, jobs, limit), range(trials), chunksize=4)) / trials
            for slow in slowdowns
        ]
    of_system = years * nights / NIGHTS_A_YEAR
    interval = of_years(false, of_system)
    said = at_most(interval, MOST_A_YEAR)
    shares = ", ".join(
        f"{step:.0%} in {within}{f' after {since}' * (since < SETTLED)}: {part:.0%}"
        for (step, within, since), part in zip(slowdowns, found, strict=True)
    )
    sys.stdout.write(
        f"{kind}, {jobs} job{'s' * (jobs > 1)} a night: {said}, {false} false alarms in {of_system:g} years of {count} "
        f"figures, {false / of_system:.2f} a year and at most {interval.high:.2f}. Found, of slowdowns "
        f"by so much within so many nights: {shares}. {time.monotonic() - began:.0f} s\n"
    )
    sys.stdout.flush()
    return said


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--noise", nargs="+", choices=KINDS, default=KINDS)
    options.add_argument("--figures", type=int, default=200)
    options.add_argument("--nights", type=int, default=NIGHTS_A_YEAR, help="of a year")
    options.add_argument("--years", type=int, default=20)
    options.add_argument("--jobs", type=int, nargs="+", default=[1, 3], help="a night")
    options.add_argument("--trials", type=int, default=200, help="of each slowdown")
    options.add_argument(
        "--write",
        type=Path,
        nargs="+",
        metavar="DATABASE",
        help="take the measured noise from these results databases, and do nothing else",
    )
    options.add_argument("--first", type=int, default=40, help="nights of each of them only, as before a fault")
    given = options.parse_args()
    if given.write:
        write(given.write, MEASURED, given.first)
        return 0
    limit = detector.false_alarm_limit(given.figures)
    said = {
        report(kind, jobs, given.figures, given.nights, given.years, given.trials, limit)
        for jobs in given.jobs
        for kind in given.noise
    }
    return 1 if "fail" in said else 2 if "undecided" in said else 0


if __name__ == "__main__":
    sys.exit(main())
