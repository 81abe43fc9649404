"""A system's pages are made of its nights with all that there is to say of each."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import pandas as pd

from engine.errors import EngineError
from reports import text
from reports.nights.changes import what_changed
from reports.nights.figures import FigureHistory
from reports.nights.history import History, Night
from reports.nights.judge import Judged, judged
from reports.nights.report import NightReport, reports_of
from reports.nights.verdicts import Verdict
from systems import references
from systems.references import Key, Reference, References, worse_by


@dataclass(frozen=True, slots=True)
class Followed:
    """A judged figure's test has a name in a few words. updates say, by the night's position, what of the machine
    changed since the night before in which the test ran.
    """

    judged: Judged
    test: str
    updates: Mapping[int, Sequence[str]]

    @property
    def of(self) -> FigureHistory:
        return self.judged.of

    @property
    def usual(self) -> Reference | None:
        return self.judged.usual

    @property
    def latest(self) -> Verdict | None:
        """The last night that has the figure has this verdict; None if it is from before the references."""
        return self.judged.verdicts.get(self.of.nights[-1])

    @property
    def alarms(self) -> frozenset[int]:
        return frozenset(at for at, verdict in self.judged.verdicts.items() if verdict.alarm)

    @property
    def changes(self) -> Mapping[int, float]:
        """The figure itself changed by such a fraction, with the nights at these positions."""
        sign = worse_by(self.of.unit)
        return {at: math.expm1(sign * step.size) for at, step in self.judged.changes.items()}


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
    every = judged(history, known)
    (report,) = reports_of(history, known, every, 1)
    updates = _updates(history.nights)
    found = [Followed(one, report.named(one.of.key), updates[one.of.key]) for one in every]
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


def band(verdict: Verdict | None) -> tuple[float, float, float]:
    """Return what is expected of a night, and the ends between which 95 of 100 nights without a change lie; NaN where
    that isn't known.
    """
    if verdict is None or not math.isfinite(verdict.usual):
        return (math.nan,) * 3
    usual, ratio = verdict.usual, 1 + verdict.change
    return usual, usual * ratio / (1 + verdict.high), usual * ratio / (1 + verdict.low)


def frame(one: Followed, nights: Sequence[Night]) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for at, values in zip(one.of.nights, one.of.values, strict=True):
        verdict = one.judged.verdicts.get(at)
        usual, low, high = band(verdict)
        rows.append(
            {
                "test": one.test, "figure": text.clean(one.of.figure, 80), "unit": one.of.unit,
                "night": text.clean(nights[at].name, 80), "began": f"{nights[at].began:%Y-%m-%dT%H:%M:%SZ}",
                "median": median(values), "least": min(values), "most": max(values), "jobs": len(values),
                "expected": usual, "low": low, "high": high, "verdict": verdict.word if verdict else None,
                "alarm_since": text.clean(verdict.alarm.night, 80) if verdict and verdict.alarm else None,
                "change_of_level": one.changes.get(at), "updated": "; ".join(one.updates.get(at, ())),
            }
        )  # fmt: skip
    return pd.DataFrame(rows)
