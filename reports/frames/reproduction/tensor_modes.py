"""Rates of tensor modes that claims are judged by: of each mode on the shape on which it stood best."""

import re
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from engine.result.judges.peers import FEWEST_JOBS
from reports.frames.modes import MODES, of_framework, of_series
from reports.frames.reproduction.samples import (
    LAYOUT,
    Asked,
    Row,
    Sample,
    divided,
    grouped,
    hull,
    in_order,
    lead_of,
    over_jobs,
    place_of,
    setting,
)
from reports.frames.tensor_modes import STUDY

PAIRED = "System II"
"""Machine of the paper whose links between pairs of devices are slower than within them."""
PAIRED_HERE = "-pairs"
"""Ending of the name of a machine here with such links."""


class _Rates(NamedTuple):
    """Jobs of one number of devices and one network, by mode: each in the shape with the highest median rate."""

    of: str
    by_mode: dict[str, list[Row]]

    def sample(self, mode: str) -> Sample | None:
        jobs = self.by_mode.get(mode, [])
        return over_jobs([job["images_per_s"] for job in jobs], setting(jobs[0])) if jobs else None

    def ratio(self, mode: str, other: str) -> Sample | None:
        """Return the rate of one mode over that of another."""
        one, two = self.sample(mode), self.sample(other)
        return divided(one, two, f"{one.of}, over {two.of}") if one and two else None


def rate(asked: Asked) -> Sample | None:
    """Return the images a second of a number's mode, on the paper's machine."""
    found = _at(asked, place_of(asked.target).devices) if asked.home else None
    return found and found.sample(of_framework(asked.number.framework))


def gain(asked: Asked) -> Sample | None:
    """Return how much faster than 1D a number's mode is, or each of several; elsewhere the sign alone counts."""
    found = _at(asked, place_of(asked.target).devices)
    named = [mode for mode in MODES if re.search(rf"(^| ){re.escape(mode)}( |$)", asked.number.framework)]
    leads = [found.ratio(mode, MODES[0]) for mode in named] if found else []
    known = [lead_of(one) for one in leads if one is not None]
    return hull(known) if known and len(known) == len(named) else None


def largest_gain(asked: Asked) -> Sample | None:
    """Return the largest rate of a mode over 1D on the same devices, of all numbers of devices."""
    groups = _groups(asked, asked.rows("train", STUDY)) if alike(asked) else []
    ratios = [group.ratio(mode, MODES[0]) for group in groups for mode in MODES[1:]]
    known = [one for one in ratios if one is not None]
    return max(known, key=lambda one: one.value, default=None)


def order(asked: Asked) -> Sample | None:
    """Return by how much the mode that is said to be ahead is: of its rate by the other's, less 1."""
    comparison = asked.target.comparison
    if comparison is None:
        return None
    found = _at(asked, place_of(asked.target).devices)
    ratio = found.ratio(comparison.ahead, comparison.behind) if found else None
    return ratio and lead_of(ratio)


def alike(asked: Asked) -> bool:
    """Say whether the machine is the paper's, or one with links of the same sort: equal, or slower between pairs."""
    return asked.home or (asked.claim.system == PAIRED) == asked.machine.endswith(PAIRED_HERE)


def _at(asked: Asked, devices: tuple[int, int] | None) -> _Rates | None:
    """Return the rates on so many devices."""
    if not alike(asked):
        return None
    rows = asked.rows("train", STUDY)
    within = [row for row in rows if devices is None or devices[0] <= row["ranks"] <= devices[1]]
    return next(iter(_groups(asked, within)), None)


def _groups(asked: Asked, rows: Iterable[Row]) -> list[_Rates]:
    """Return the rates of each number of devices and network, in the order in which settings are asked."""
    found = []
    for jobs in in_order(grouped(rows, lambda row: (row["ranks"], row["model"]))):
        by_mode = {mode: [row for row in jobs if of_series(row["series"]) == mode] for mode in MODES}
        of = f"{jobs[0]['model']} on {int(jobs[0]['ranks'])}"
        found.append(_Rates(of, {mode: _fastest(rows) for mode, rows in by_mode.items() if rows}))
    return found


def _fastest(rows: Sequence[Row]) -> list[Row]:
    """Return the jobs of the shape with the highest median rate, but first of those with as many as a verdict takes."""
    shapes = grouped(rows, lambda row: tuple(str(row[key]) for key in LAYOUT))
    return max(shapes, key=lambda jobs: (len(jobs) >= FEWEST_JOBS, median(job["images_per_s"] for job in jobs)))
