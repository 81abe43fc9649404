"""What there is to say of a night: its verdicts, its alarms with their culprits, and how much chance is in them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from reports import text
from reports.nights import evidence
from reports.nights.changes import what_changed
from reports.nights.culprit import culprit
from reports.nights.history import History, Job, Night
from reports.nights.judge import Verdict, Word, judge, words
from systems.references import FEWEST_JOBS, Key, References, worse_by

BEFORE = 20
"""So many nights before a change tell how it was."""
FINE, WORSE, UNKNOWN = 0, 1, 2
"""Exit codes."""


@dataclass(frozen=True, slots=True)
class Raised:
    """An alarm of a night. culprit: a clause; changed: what of the machine differs since then."""

    verdict: Verdict
    culprit: str
    changed: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """What got worse, by how much, since when, through what, and what changed then."""
        verdict, alarm = self.verdict, self.verdict.alarm
        assert alarm is not None
        way = "longer" if verdict.unit == "s" else "more" if worse_by(verdict.unit) > 0 else "less"
        size = alarm.effect if worse_by(verdict.unit) > 0 else -alarm.effect / (1 + alarm.effect)
        found = f"{named(verdict.key)}: {verdict.figure} is {text.percent(abs(size))} {way}"
        found += " tonight" if alarm.night == verdict.night else f" since the night {alarm.night}"
        found += f". Culprit: {self.culprit}" if self.culprit else ". Its parts don't tell the culprit"
        found += (
            f". Changed then: {'; '.join(self.changed)}." if self.changed else ". Nothing that is recorded changed."
        )
        return found


@dataclass(frozen=True, slots=True)
class Told:
    """Of a night. remarks: what else is to be known, in sentences."""

    system: str
    night: str
    began: datetime
    verdicts: tuple[Verdict, ...]
    alarms: tuple[Raised, ...]
    remarks: tuple[str, ...]

    @property
    def counts(self) -> dict[Word, int]:
        """Verdicts by word."""
        return words(self.verdicts)

    @property
    def code(self) -> int:
        """The exit code: 1 where something got worse or failed, 2 where nothing, or not everything, could be judged."""
        counts = self.counts
        if self.alarms or counts["failed"]:
            return WORSE
        return UNKNOWN if counts["unknown"] or not self.verdicts else FINE

    @property
    def headline(self) -> str:
        """One line that says whether anything is worse."""
        counts = self.counts
        judged = counts["slower"] + counts["same"] + counts["faster"]
        parts = []
        if self.alarms:
            tests = list(dict.fromkeys(named(raised.verdict.key) for raised in self.alarms))
            more = f" and {len(tests) - 2} more" if len(tests) > 2 else ""
            parts.append(f"{text.plural(len(self.alarms), 'figure')} got worse, of {' and '.join(tests[:2])}{more}")
        if counts["failed"]:
            parts.append(f"{text.plural(counts['failed'], 'test')} failed")
        if not parts:
            parts.append("nothing got worse" if judged else "nothing could be judged")
        if counts["unknown"] and judged:
            parts.append(f"{text.plural(counts['unknown'], 'figure')} can't be judged yet")
        return f"{self.system}, night {self.night}: {', '.join(parts)}."

    @property
    def chance(self) -> str:
        """How much of it may be chance."""
        counts = self.counts
        judged = counts["slower"] + counts["same"] + counts["faster"]
        return (
            f"Chance: of {text.plural(judged, 'figure')} judged, false alarms are expected "
            f"{evidence.FALSE_ALARMS_A_YEAR:g} times a year at most; of those called slower or faster, one in twenty."
        )


def tell(history: History, known: References | None, *, last: int = 1) -> list[Told]:
    """The last nights, oldest first."""
    nights = history.nights[-last:]
    found = []
    for night, verdicts in zip(nights, judge(history, known, last=last), strict=True):
        until = history.nights.index(night) + 1
        alarms = [_raised(verdict, history.nights[:until]) for verdict in verdicts if verdict.alarm]
        remarks = [*history.remarks, *_remarks(history.system, known, night)]
        ordered = sorted(verdicts, key=_order)
        found.append(Told(history.system, night.name, night.began, tuple(ordered), tuple(alarms), tuple(remarks)))
    return found


def named(key: Key) -> str:
    """A test as a person names it."""
    return " ".join(word for word in (key.test, key.point.replace("point=", "")) if word)


def _order(verdict: Verdict) -> tuple[int, str, str]:
    ranks: dict[Word, int] = {"failed": 0, "slower": 1, "faster": 2, "same": 3, "unknown": 4}
    return 0 if verdict.alarm else 1 + ranks[verdict.word], named(verdict.key), verdict.figure


def _remarks(system: str, known: References | None, night: Night) -> Iterable[str]:
    if known is None:
        yield (
            f"There are no references of {system}: with {FEWEST_JOBS} jobs of a test, run "
            f"`par4d reference make --system {system}`."
        )
    if skipped := sum(job.skipped for job in night.jobs):
        yield f"{text.plural(skipped, 'job')} of the night {'was' if skipped == 1 else 'were'} skipped."


def _raised(verdict: Verdict, nights: Sequence[Night]) -> Raised:
    assert verdict.alarm is not None
    names = [night.name for night in nights]
    began = names.index(verdict.alarm.night)
    since, before = (
        [job for night in some for job in night.jobs if job.key == verdict.key and job.figures]
        for some in (nights[began:], nights[max(0, began - BEFORE) : began])
    )
    return Raised(
        verdict,
        culprit(verdict.key.test, since, before),
        tuple(what_changed(_states(before), _states(since))),
    )


def _states(jobs: Iterable[Job]) -> list[dict[str, str]]:
    return [dict(job.state) for job in jobs]
