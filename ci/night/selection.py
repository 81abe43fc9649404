"""A budget of node-hours has room for some of a system's nightly tests: the most valuable ones come first."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from reports.nights.history import History
from systems.references import name_of

HOUR_S = 3600.0
MARGIN = 1.25
"""The next job may take so many times as long as earlier ones did."""


@dataclass(frozen=True, slots=True)
class NightlyTest:
    """A test as `reframe --describe` has it. worth: see suites/base/night.py.

    node_hours: what a job of it takes, by earlier runs or at most. fixtures: the node-hours of the jobs that it needs
    besides, by name, which tests may share.
    """

    name: str
    hashcode: str
    node_hours: float
    by: str
    worth: int
    fixtures: Mapping[str, float]

    @property
    def whole_hours(self) -> float:
        """Return the node-hours of the test and its fixtures, where it shares none."""
        return self.node_hours + sum(self.fixtures.values())


@dataclass(frozen=True, slots=True)
class Selection:
    """What a budget has room for. chosen: in the order of worth. node_hours: what one job of each chosen test takes."""

    chosen: tuple[NightlyTest, ...]
    left_out: tuple[NightlyTest, ...]
    node_hours: float


def nightly_tests(described: Iterable[Mapping[str, Any]], history: History) -> list[NightlyTest]:
    """Return the tests that ReFrame describes, with their costs by earlier runs where there are any."""
    earlier: dict[tuple[str, str], list[float]] = {}
    for job in history.jobs:
        if job.figures:
            earlier.setdefault(job.key.name, []).append(job.node_seconds)
    found = []
    for test in described:
        name = str(test["display_name"])
        runs = earlier.get(name_of(name))
        fixtures = {str(one["unique_name"]): float(one["node_hours"]) for one in test["fixture_jobs"]}
        fixtures |= {unique: _hours(history.held_s[unique]) for unique in fixtures.keys() & history.held_s.keys()}
        if runs:
            hours, by = _hours(runs), f"by {len(runs)} earlier job{'s' * (len(runs) > 1)}"
        else:
            hours, by = float(test["node_hours"]), "by its time limit"
        found.append(NightlyTest(name, str(test["hashcode"]), hours, by, int(test["worth"]), fixtures))
    return found


def _hours(earlier_s: Sequence[float]) -> float:
    return MARGIN * median(earlier_s) / HOUR_S


def select(every: Sequence[NightlyTest], node_hours: float) -> Selection:
    """Choose the most valuable tests that fit together; of equally valuable ones the cheapest go first."""
    chosen, left_out, taken, shared = list[NightlyTest](), list[NightlyTest](), 0.0, dict[str, float]()
    for test in sorted(every, key=lambda one: (-one.worth, one.node_hours, one.name)):
        cost = test.node_hours + sum(hours for name, hours in test.fixtures.items() if name not in shared)
        if taken + cost <= node_hours:
            chosen.append(test)
            taken += cost
            shared |= test.fixtures
        else:
            left_out.append(test)
    return Selection(tuple(chosen), tuple(left_out), taken)
