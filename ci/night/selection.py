"""Which of a system's nightly tests a budget of node-hours has room for, the most valuable ones first."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from reports.nights.history import History

HOUR_S = 3600.0
MARGIN = 1.25
"""An earlier run says that much less than the next one may take."""


@dataclass(frozen=True, slots=True)
class Test:
    """A test as `reframe --describe` has it. node_hours: what a job of it takes, with those of its fixtures, by earlier
    runs or at most; worth: as suites/night.py has it.
    """

    name: str
    hashcode: str
    nodes: int
    node_hours: float
    by: str
    worth: int


@dataclass(frozen=True, slots=True)
class Selection:
    """chosen: in the order of their worth; left_out: what the budget has no room for."""

    chosen: tuple[Test, ...]
    left_out: tuple[Test, ...]

    @property
    def node_hours(self) -> float:
        """Of one job of each."""
        return sum(test.node_hours for test in self.chosen)


def tests(described: Iterable[Mapping[str, Any]], history: History) -> list[Test]:
    """What ReFrame describes, with the cost that earlier runs tell."""
    earlier: dict[str, list[float]] = {}
    for job in history.jobs:
        if job.figures:
            earlier.setdefault(name_of(f"{job.key.test} {job.key.point}"), []).append(job.node_seconds)
    found = []
    for test in described:
        name = str(test["display_name"])
        runs = earlier.get(name_of(name))
        fixtures = sum(float(one["node_hours"]) for one in test.get("fixture_jobs") or ())
        if runs:
            hours, by = MARGIN * median(runs) / HOUR_S, f"by {len(runs)} earlier job{'s' * (len(runs) > 1)}"
        else:
            hours, by = float(test["node_hours"]), "by its time limit"
        found.append(Test(name, str(test["hashcode"]), int(test["nodes"]), hours + fixtures, by, int(test["worth"])))
    return found


def select(every: Sequence[Test], node_hours: float) -> Selection:
    """The most valuable tests that fit together, of equal ones the cheapest."""
    chosen, left_out, left = list[Test](), list[Test](), node_hours
    for test in sorted(every, key=lambda one: (-one.worth, one.node_hours, one.name)):
        if test.node_hours <= left:
            chosen.append(test)
            left -= test.node_hours
        else:
            left_out.append(test)
    return Selection(tuple(chosen), tuple(left_out))


def name_of(display_name: str) -> str:
    """A test's name, however it was told."""
    return display_name.replace("%", "").strip()
