"""A system's pages are made of its nights with all that there is to say of each."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import pandas as pd

from engine.errors import EngineError
from reports import text
from reports.nights import evidence
from reports.nights.changes import Change, changes, what_changed
from reports.nights.figures import FigureHistory, figures
from reports.nights.history import History, Night
from reports.nights.judge import judge
from reports.nights.report import NightReport, reports_of
from reports.nights.verdicts import Verdict
from systems import references
from systems.references import Key, Reference, References


@dataclass(frozen=True, slots=True)
class Followed:
    """A judged figure has verdicts by the night's position, and its test a name in a few words.

    updates say, by position too, what of the machine changed since the night before in which the test ran.
    """

    of: FigureHistory
    test: str
    usual: Reference | None
    verdicts: Mapping[int, Verdict]
    changes: Sequence[Change]
    updates: Mapping[int, Sequence[str]]

    @property
    def latest(self) -> Verdict | None:
        """The last night that has the figure has this verdict; None if it is from before the references."""
        return self.verdicts.get(self.of.nights[-1])

    @property
    def alarms(self) -> frozenset[int]:
        return frozenset(at for at, verdict in self.verdicts.items() if verdict.alarm)


@dataclass(frozen=True, slots=True)
class FollowedSystem:
    """A system has a page of its nights, of that name, and a report of the last one."""

    page: str
    history: History
    report: NightReport
    figures: Sequence[Followed]

    @property
    def name(self) -> str:
        return text.clean(self.history.system, 60)

    @property
    def nights(self) -> tuple[Night, ...]:
        return self.history.nights


def followed(histories: Sequence[History]) -> list[FollowedSystem]:
    pages = text.slugs(history.system for history in histories)
    return [_system(f"history-{page}", history) for page, history in zip(pages, histories, strict=True)]


def _system(page: str, history: History) -> FollowedSystem:
    known, why = _references(history.system)
    verdicts: dict[tuple[Key, str], dict[int, Verdict]] = {}
    judged = judge(history, known, last=len(history.nights))
    for at, night in enumerate(judged):
        for verdict in night:
            verdicts.setdefault((verdict.key, verdict.figure), {})[at] = verdict
    (report,) = reports_of(history, known, judged, 1)
    every = figures(history.nights)
    updates = _updates(history.nights)
    by_key = known.by_key() if known else {}
    found = []
    for one in every:
        series = by_key.get(one.key)
        moved = [Change(one.nights[change.at], change.change) for change in changes(list(map(median, one.values)))]
        found.append(
            Followed(
                one, report.named(one.key), series.figures.get(one.figure) if series else None,
                verdicts.get((one.key, one.figure), {}), moved, updates[one.key],
            )
        )  # fmt: skip
    return FollowedSystem(page, history, replace(report, remarks=(*why, *report.remarks)), found)


def _references(system: str) -> tuple[References | None, list[str]]:
    """Read a system's references, whatever its name may be; or else None and why there are none to use."""
    if system not in {path.stem for path in references.FOLDER.glob("*.yaml")}:
        return None, []
    try:
        return references.references(system), []
    except (EngineError, OSError) as error:
        return None, [str(error)]


def _updates(nights: Sequence[Night]) -> dict[Key, dict[int, list[str]]]:
    """Say by test, and by the night's position, what of the machine differs from the night before with that test."""
    found: dict[Key, dict[int, list[str]]] = {}
    before: dict[Key, list[Mapping[str, str]]] = {}
    for at, night in enumerate(nights):
        states: dict[Key, list[Mapping[str, str]]] = {}
        for job in night.jobs:
            if job.figures:
                states.setdefault(job.key, []).append(job.state)
        for key, now in states.items():
            words = what_changed(before[key], now) if key in before else []
            found.setdefault(key, {})
            if words:
                found[key][at] = [text.clean(word, 200) for word in words]
        before |= states
    return found


def band(one: Followed) -> tuple[float, float, float]:
    """Return the reference, and the ends of where a night of as many jobs as lately lies; NaN where there is none."""
    if one.usual is None:
        return (float("nan"),) * 3
    jobs = int(median(len(values) for values in one.of.values[-evidence.LOOK_BACK :]))
    half = evidence.interval(evidence.from_reference(one.usual), jobs)
    middle = one.usual.median
    return middle, middle * math.exp(-half), middle * math.exp(half)


def frame(one: Followed, nights: Sequence[Night]) -> pd.DataFrame:
    usual, low, high = band(one)
    moved = {change.at: change.change for change in one.changes}
    rows: list[dict[str, Any]] = []
    for at, values in zip(one.of.nights, one.of.values, strict=True):
        verdict = one.verdicts.get(at)
        rows.append(
            {
                "test": one.test, "figure": text.clean(one.of.figure, 80), "unit": one.of.unit,
                "night": text.clean(nights[at].name, 80), "began": f"{nights[at].began:%Y-%m-%dT%H:%M:%SZ}",
                "median": median(values), "least": min(values), "most": max(values), "jobs": len(values),
                "reference": usual, "low": low, "high": high, "verdict": verdict.word if verdict else None,
                "alarm_since": text.clean(verdict.alarm.night, 80) if verdict and verdict.alarm else None,
                "change_of_level": moved.get(at), "updated": "; ".join(one.updates.get(at, ())),
            }
        )  # fmt: skip
    return pd.DataFrame(rows)
