"""Simulate how often nights without any change open an episode, and how soon what got slower is found, in every noise.

    python tests/reports/simulate_nights.py --all                what the page of nights shows; two hours
    python tests/reports/simulate_nights.py --noise gauss walk --years 2 --trials 20
    python tests/reports/simulate_nights.py --write results/reframe/results.db    the noise of other jobs from now on

noises.py has the noises. A system has --figures figures, each with a noise of its own and one job a night, or, with a
canary, of one noise that they share. Quiet nights may open less than one episode in a year of a system, states of the
machine no more than three. What is planted begins after SETTLED nights, in one figure of TWENTY.

Outcomes are of intervals, 95 % one-sided: Poisson's of episodes a year, and the binomial one of the share that is
found. The exit code is 1 if a row fails, 2 if one is undecided. --out keeps finished rows, and a second run goes on
from there, but for rows of another detector or seed, or of other numbers of figures, years or trials; of all rows
--page makes the table that the page of nights shows.
"""

import argparse
import csv
import hashlib
import json
import math
import os
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from noises import MEASURED, NOISES, draw
from scipy.special import betaincinv, chdtri

from engine.files import write_text
from engine.result.gate import Interval, Outcome, at_least, at_most
from reports.nights.detector import NIGHTS_A_YEAR, Detector, false_alarm_limit
from reports.nights.episodes import group
from reports.nights.judge import STEADIER, collect_figures
from reports.nights.levels import FEWEST
from reports.nights.proof import FILE
from reports.nights.report import name_tests
from reports.read.history import histories
from reports.read.run_reports import sessions

SEED = 5081
"""Drawn after the last change of the detector: no noise of it was looked at before."""
MOST_A_YEAR = {"quiet": 1.0, "states": 3.0}
SETTLED = 110
"""Nights before what is planted."""
TWENTY = 20
MENDED = 30


class Found(NamedTuple):
    """Result of a row."""

    words: str
    value: float
    """Episodes a year, or the share that was found."""
    interval: Interval


@dataclass(frozen=True, slots=True)
class Quiet:
    """Nights without any change."""

    noise: str
    canary: bool = False
    drift: float = 0.0
    """Loss of every figure in 30 nights."""
    jobs: int = 1
    """Jobs a night, of a noise that is of jobs."""

    def run(self, years: int, figures: int, pool: ProcessPoolExecutor) -> Found:
        counts = list(pool.map(partial(self.episodes, figures), range(years)))
        return Found(f"{sum(counts)} in {years} years", sum(counts) / years, of_years(sum(counts), years))

    @property
    def limit(self) -> float:
        return MOST_A_YEAR[NOISES[self.noise].group]

    def episodes(self, figures: int, year: int) -> int:
        """Count the episodes that open in a year."""
        nights = FEWEST + NIGHTS_A_YEAR
        found = follow(self.noise, figures, nights, year, canary=self.canary, drift=self.drift, jobs=self.jobs)
        return len(group(found.slowdowns))


@dataclass(frozen=True, slots=True)
class Planted:
    """Figures that get slower."""

    noise: str
    size: float
    ramp: int
    """Nights over which the loss creeps; 1: a step."""
    within: int
    """Nights since it began."""
    limit: float
    """Share that has to be found at least."""
    mended: float = 0.0
    """An earlier loss of all figures for MENDED nights, over as many nights before."""
    jobs: int = 1
    """Jobs a night, of a noise that is of jobs."""

    def run(self, trials: int, figures: int, pool: ProcessPoolExecutor) -> Found:
        a_system = max(1, figures // TWENTY)
        found = [one for some in pool.map(partial(self.nights, figures), range(-(-trials // a_system))) for one in some]
        hits = sorted(nights for nights in found if nights)
        middle = f", after {hits[len(hits) // 2]} nights" if hits else ""
        return Found(f"{len(hits)} of {len(found)}{middle}", len(hits) / len(found), of_share(len(hits), len(found)))

    @property
    def title(self) -> str:
        over = f"over {self.ramp} nights" if self.ramp > 1 else "at once"
        again = f" after {100 * self.mended:.0f} % was mended" if self.mended else ""
        return f"{100 * self.size:.0f} % {over}{again}, by night {self.within}"

    def nights(self, figures: int, trial: int) -> list[int]:
        """Return the nights after which each is found, or 0."""
        planted = {"size": self.size, "ramp": self.ramp, "mended": self.mended, "jobs": self.jobs}
        found = follow(self.noise, figures, SETTLED + self.within, 1000 + trial, **planted)
        first = dict[int, int]()
        for slowdown in found.slowdowns:
            if slowdown.found >= SETTLED:
                first.setdefault(slowdown.figure, slowdown.found - SETTLED + 1)
        return [first.get(figure, 0) for figure in range(max(1, figures // TWENTY))]


HERE, DETECTOR = Path(__file__).parent, Path(__file__).parents[2] / "reports" / "nights"
PARTS = ("detector", "levels", "noise", "canary", "shape")
SOURCES = hashlib.sha256(
    b"".join(file.read_bytes() for file in (*(DETECTOR / f"{part}.py" for part in PARTS), HERE / "noises.py"))
    + str(SEED).encode()
).hexdigest()
"""Fingerprint of the detector, the noises and the seed."""
Row = Quiet | Planted
CREEPING = ("gauss", "t3", "weekly3", "month", "out5", "ar0.7")
STEPS = {"gauss": (0.38, 0.98), "weekly3": (0.0, 0.9), "bimodal30": (0.08, 0.6), "ar0.7": (0.0, 0.6)}
"""Shares of 3 % and of 5 % lost at once that have to be found."""
ROWS: dict[str, Row] = {
    **{name: Quiet(name) for name in NOISES},
    **{f"{name}, canary": Quiet(name, canary=True) for name in NOISES if name not in ("measured", "mixed")},
    "measured, 3 jobs a night": Quiet("measured", jobs=3),
    "drift of 0.25 % a month": Quiet("gauss", drift=0.0025),
    **{f"10 % over 90 nights, {name}": Planted(name, 0.1, 90, 100, 0.8) for name in CREEPING},
    **{f"5 % over 30 nights, {name}": Planted(name, 0.05, 30, 60, 0.7) for name in CREEPING},
    "1 % a month, gauss": Planted("gauss", 0.12, 365, 365, 0.8),
    **{f"3 %, {name}": Planted(name, 0.03, 1, 60, share) for name, (share, _) in STEPS.items()},
    **{f"5 %, {name}": Planted(name, 0.05, 1, 60, share) for name, (_, share) in STEPS.items()},
    **{f"10 %, {name}": Planted(name, 0.1, 1, 3, 0.95) for name in STEPS},
    **{f"10 % by the fifth, {name}": Planted(name, 0.1, 1, 5, 0.95) for name in STEPS},
    **{f"10 %, measured, {jobs} a night": Planted("measured", 0.1, 1, 60, 0.0, jobs=jobs) for jobs in (1, 3)},
    "5 % after 20 % was mended, gauss": Planted("gauss", 0.05, 1, 60, 0.9, mended=0.2),
}
"""Rows to simulate, and the limit of each."""


def follow(
    noise: str,
    figures: int,
    nights: int,
    year: int,
    *,
    canary: bool = False,
    drift: float = 0.0,
    size: float = 0.0,
    ramp: int = 1,
    mended: float = 0.0,
    jobs: int = 1,
) -> Detector:
    """Follow a system's figures through these nights. size: of what is planted in one figure of TWENTY."""
    random = np.random.default_rng([SEED, year, zlib.crc32(noise.encode())])
    drawn = [draw(noise, figures, nights, random, canary=canary) for _ in range(jobs)]
    values, machine = np.median([of_job for of_job, _ in drawn], axis=0), drawn[0][1]
    values += math.log1p(drift) / 30 * np.arange(nights)
    values[:, SETTLED - 2 * MENDED : SETTLED - MENDED] += math.log1p(mended)
    if size:
        planted = np.clip((np.arange(nights) - SETTLED + 1) / ramp, 0, 1)
        values[: max(1, figures // TWENTY)] += math.log1p(size) * planted
    found = Detector([false_alarm_limit(figures)] * figures)
    for night in range(nights):
        seconds = [] if machine is None else [float(machine[night])]
        found.add(night, {figure: ([float(value)], seconds) for figure, value in enumerate(values[:, night])})
    return found


def of_years(count: int, years: float) -> Interval:
    """Return the interval of the mean number a year, 95 % at each end, by the count of some years (Poisson)."""
    low = chdtri(2 * count, 0.95) / 2 if count else 0.0
    return Interval(float(low) / years, float(chdtri(2 * count + 2, 0.05)) / 2 / years)


def of_share(count: int, of: int) -> Interval:
    """Return the interval of a share, 95 % at each end (Clopper and Pearson)."""
    low = float(betaincinv(count, of - count + 1, 0.05)) if count else 0.0
    return Interval(low, float(betaincinv(count + 1, of - count, 0.95)) if count < of else 1.0)


def judged(row: Row, words: argparse.Namespace, pool: ProcessPoolExecutor) -> dict[str, Any]:
    """Simulate a row; returns what is kept of it."""
    began, count = time.monotonic(), count_of(row, words)
    found = row.run(count, words.figures, pool)
    said = (at_most if isinstance(row, Quiet) else at_least)(found.interval, row.limit)
    return {
        **{"outcome": said, "words": found.words, "value": found.value, "limit": row.limit},
        **{"low": found.interval.low, "high": found.interval.high},
        **{"count": count, "figures": words.figures, "seconds": round(time.monotonic() - began)},
        "sources": SOURCES,
    }


def count_of(row: Row, words: argparse.Namespace) -> int:
    return int(words.years if isinstance(row, Quiet) else words.trials)


def simulate(names: list[str], words: argparse.Namespace) -> Iterator[Outcome]:
    """Simulate these rows one after the other, write each to standard output, and keep it."""
    kept = json.loads(words.out.read_text()) if words.out and words.out.exists() else {}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for name in names:
            told, wanted = kept.get(name), [count_of(ROWS[name], words), words.figures, SOURCES]
            if told is None or [told["count"], told["figures"], told.get("sources")] != wanted:
                told = judged(ROWS[name], words, pool)
            kept[name] = told
            if words.out:
                write_text(words.out, json.dumps(kept, indent=1) + "\n")
            sys.stdout.write(
                f"{told['outcome']}: {name}: {told['words']}, {told['low']:.2f} to {told['high']:.2f}, "
                f"asked {told['limit']:g}; {told['figures']} figures, {told['seconds']} s\n"
            )
            sys.stdout.flush()
            yield told["outcome"]


def keep_for_page(kept: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the table of the page of nights: a row of each noise, with what was planted in it."""
    rows = []
    for name, row in ROWS.items():
        if not isinstance(row, Quiet):
            continue
        of = {"noise": row.noise, "jobs": row.jobs, "canary": row.canary, "drift": row.drift, "asked": row.limit}
        of |= {"years": kept[name]["count"], "outcome": kept[name]["outcome"]}
        of |= {"episodes_a_year": round(kept[name]["high"], 3)}
        if not (row.canary or row.drift):  # what is planted has neither
            of["found"] = {
                other.title: {
                    "share": round(kept[key]["value"], 3),
                    "asked": other.limit,
                    "outcome": kept[key]["outcome"],
                }
                for key, other in ROWS.items()
                if isinstance(other, Planted) and (other.noise, other.jobs) == (row.noise, row.jobs)
            }
        rows.append(of)
    write_text(
        FILE,
        "# By tests/reports/simulate_nights.py --all --out FILE --page.\n"
        + yaml.safe_dump({"rows": rows}, sort_keys=False),
    )


def write(databases: list[Path], path: Path, first: int) -> None:
    """Write every judged figure that has 20 jobs or more in the first nights of a database."""
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


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--all", action="store_true", help="every row, as the page of nights shows them")
    options.add_argument("--noise", nargs="+", choices=NOISES, default=[], help="the rows of these noises alone")
    options.add_argument("--figures", type=int, default=200)
    options.add_argument("--years", type=int, default=20, help="of nights without any change")
    options.add_argument("--trials", type=int, default=200, help="of each loss that is planted")
    options.add_argument("--out", type=Path, help="keep finished rows there, and go on from what it has")
    options.add_argument("--page", action="store_true", help="make the page's table of what --out has, and no more")
    options.add_argument(
        "--write",
        type=Path,
        nargs="+",
        metavar="DATABASE",
        help="take the measured noise from these results databases, and do nothing else",
    )
    options.add_argument("--first", type=int, default=40, help="nights of each of them only, as before a fault")
    words = options.parse_args()
    if words.write:
        write(words.write, MEASURED, words.first)
        return 0
    if words.page:
        if not words.out:
            options.error("--page takes --out with the rows")
        kept = json.loads(words.out.read_text()) if words.out.exists() else {}
        if missing := [name for name in ROWS if name not in kept]:
            options.error(
                f"--page takes all rows, but {words.out} has no {', '.join(missing[:3])}: simulate --all first"
            )
        keep_for_page(kept)
        return 0
    names = [name for name, row in ROWS.items() if words.all or row.noise in words.noise]
    if not names:
        options.error("give --all, or the names of some noises behind --noise")
    said = set(simulate(names, words))
    return 1 if "fail" in said else 2 if "undecided" in said else 0


if __name__ == "__main__":
    sys.exit(main())
