"""A budget of node-hours has room for some of a system's nightly tests: the most valuable ones come first."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
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

    node_hours: what a job of it takes, by earlier runs or at most, with the jobs that it needs first, at most.
    """

    name: str
    hashcode: str
    node_hours: float
    by: str
    worth: int


def nightly_tests(described: Iterable[Mapping[str, Any]], history: History) -> list[NightlyTest]:
    """Return the tests that ReFrame describes, with their costs by earlier runs where there are any."""
    earlier = defaultdict[tuple[str, str], list[float]](list)
    for job in history.jobs:
        if job.figures:
            earlier[job.key.name].append(job.node_seconds / HOUR_S)
    found = []
    for test in described:
        name, hours, by = str(test["display_name"]), float(test["node_hours"]), "by its time limit"
        first = sum(one["node_hours"] for one in test["fixture_jobs"])
        if runs := earlier.get(name_of(name)):
            hours, by = MARGIN * median(runs), f"by {len(runs)} earlier job{'s' * (len(runs) > 1)}"
            by += ", and by the time limits of what it needs first" if first else ""
        found.append(NightlyTest(name, str(test["hashcode"]), hours + first, by, int(test["worth"])))
    return found


def select(every: Iterable[NightlyTest], node_hours: float) -> list[NightlyTest]:
    """Choose the most valuable tests that fit together; of equally valuable ones the cheapest go first."""
    chosen = list[NightlyTest]()
    for test in sorted(every, key=lambda one: (-one.worth, one.node_hours, one.name)):
        if test.node_hours <= node_hours:
            chosen.append(test)
            node_hours -= test.node_hours
    return chosen
