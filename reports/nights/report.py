"""A report says of a night its verdicts, its alarms with their culprits, and how much chance is in them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from reports import text
from reports.nights.changes import what_changed
from reports.nights.culprit import culprit
from reports.nights.detector import FALSE_ALARMS_A_YEAR
from reports.nights.history import History, Night, NightJob
from reports.nights.judge import Judged, by_test, judged, verdicts_of
from reports.nights.verdicts import Verdict, Word, words
from systems.references import CANARY, FEWEST_JOBS, Key, References, worse_by

BEFORE = 20
"""This many nights before a change show how it was."""
JUDGED: tuple[Word, ...] = ("worse", "same", "better")
MACHINE = "the machine, as the canary never changes"
FINE, WORSE, UNKNOWN = 0, 1, 2
"""These are the exit codes of par4d verdict."""


@dataclass(frozen=True, slots=True)
class Raised:
    """A night's alarm names the test, says in a clause what the culprit is, and what of the machine changed then."""

    verdict: Verdict
    test: str
    culprit: str
    changed: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The sentence says what got worse, by how much, since when, through what, and what changed then."""
        verdict, alarm = self.verdict, self.verdict.alarm
        assert alarm is not None
        way = "longer" if verdict.unit == "s" else "more" if worse_by(verdict.unit) > 0 else "less"
        size = alarm.effect if worse_by(verdict.unit) > 0 else -alarm.effect / (1 + alarm.effect)
        found = f"{self.test}: {verdict.figure} is {text.percent(abs(size))} {way} since the night {alarm.night}"
        found += f". Culprit: {self.culprit}" if self.culprit else ". Its parts don't tell the culprit"
        found += (
            f". Changed then: {'; '.join(self.changed)}." if self.changed else ". Nothing that is recorded changed."
        )
        return found


@dataclass(frozen=True, slots=True)
class NightReport:
    """A night has verdicts and alarms, and remarks say in sentences what else is to be known. Each test that has ever
    measured something has a name of its own.
    """

    system: str
    night: str
    began: datetime
    verdicts: tuple[Verdict, ...]
    alarms: tuple[Raised, ...]
    remarks: tuple[str, ...]
    names: Mapping[Key, str]

    def named(self, key: Key) -> str:
        return self.names.get(key) or text.clean(_plainly(key), 120)

    @property
    def counts(self) -> dict[Word, int]:
        return words(self.verdicts)

    @property
    def judged(self) -> int:
        """So many figures were set against a reference."""
        return sum(self.counts[word] for word in JUDGED)

    @property
    def code(self) -> int:
        counts = self.counts
        if self.alarms or counts["failed"]:
            return WORSE
        return UNKNOWN if counts["unknown"] or not self.verdicts else FINE

    @property
    def headline(self) -> str:
        counts, judged = self.counts, self.judged
        unknown = [verdict for verdict in self.verdicts if verdict.word == "unknown" and not verdict.alarm]
        without = sum(not verdict.figure for verdict in unknown)
        parts = []
        if self.alarms:
            tests = list(dict.fromkeys(raised.test for raised in self.alarms))
            more = f" and {len(tests) - 2} more" if len(tests) > 2 else ""
            parts.append(f"{text.plural(len(self.alarms), 'figure')} got worse, of {' and '.join(tests[:2])}{more}")
        if counts["failed"]:
            parts.append(f"{text.plural(counts['failed'], 'test')} failed")
        if far := sum(verdict.far for verdict in self.verdicts):
            parts.append(f"{text.plural(far, 'figure')} {'is' if far == 1 else 'are'} far off, which is no alarm yet")
        if not parts:
            parts.append("nothing got worse" if judged else "nothing could be judged")
        if without:
            parts.append(f"{text.plural(without, 'test')} left no result")
        if judged and len(unknown) > without:
            parts.append(f"{text.plural(len(unknown) - without, 'figure')} can't be judged yet")
        return f"{self.system}, night {self.night}: {', '.join(parts)}."

    @property
    def chance(self) -> str:
        if not self.judged:
            return "Chance: no figure was judged."
        return (
            f"Chance: with {text.plural(self.judged, 'figure')} judged every night, alarms are meant to be false "
            f"{FALSE_ALARMS_A_YEAR:g} times a year."
        )


def night_reports(history: History, known: References | None, *, last: int = 1) -> list[NightReport]:
    """Report the last nights, oldest first."""
    return reports_of(history, known, judged(history, known), last)


def reports_of(history: History, known: References | None, every: Sequence[Judged], last: int) -> list[NightReport]:
    """Report the last nights by the verdicts of all."""
    names = named(dict.fromkeys(job.key for job in history.jobs if job.figures))
    found = []
    for position in range(max(0, len(history.nights) - last), len(history.nights)):
        nights, verdicts = history.nights[: position + 1], verdicts_of(history, every, position)
        alarms = [_raised(verdict, names[verdict.key], nights) for verdict in verdicts if verdict.alarm]
        remarks = [*history.remarks, *_remarks(history.system, known, nights[-1]), *_drifted(verdicts, names)]
        ordered = sorted(verdicts, key=_order)
        night = nights[-1]
        found.append(
            NightReport(history.system, night.name, night.began, tuple(ordered), tuple(alarms), tuple(remarks), names)
        )
    return found


def named(keys: Iterable[Key]) -> dict[Key, str]:
    plain = {key: _plainly(key) for key in keys}
    taken = Counter(plain.values())
    longer = {
        key: name if taken[name] == 1 else ", ".join(filter(None, (name, key.partition, key.grid, key.precision)))
        for key, name in plain.items()
    }
    alike, seen = Counter(longer.values()), Counter[str]()
    found = {}
    for key, name in longer.items():
        seen[name] += 1
        found[key] = text.clean(name, 120) + (f", options {seen[name]}" if alike[name] > 1 else "")
    return found


def _plainly(key: Key) -> str:
    return " ".join(word for word in (key.test, key.point.replace("point=", "")) if word)


def _order(verdict: Verdict) -> tuple[int, str, str]:
    ranks: dict[Word, int] = {"failed": 0, "worse": 1, "better": 2, "same": 3, "unknown": 4}
    return 0 if verdict.alarm else 1 + ranks[verdict.word], _plainly(verdict.key), verdict.figure


def _remarks(system: str, known: References | None, night: Night) -> Iterable[str]:
    if known is None:
        yield (
            f"There are no references of {system}: with {FEWEST_JOBS} jobs of a test, run "
            f"`par4d reference make --system {system}`."
        )
    for jobs in by_test(night.jobs).values():
        bad = [job for job in jobs if job.reason and not job.failed]
        if bad and len(bad) < len(jobs):
            of = f"{len(bad)} of {len(jobs)} jobs of {_plainly(bad[0].key)}"
            yield f"{of} left no result: {text.clean(bad[0].reason, 200)}."


def _drifted(verdicts: Iterable[Verdict], names: Mapping[Key, str]) -> Iterable[str]:
    """Tell what is worse than its reference without an alarm."""
    if drifted := sorted((one for one in verdicts if one.drift), key=lambda one: -one.drift):
        words = ", ".join(f"{names[one.key]} {one.figure} (by {text.percent(one.drift)})" for one in drifted[:3])
        more = f" and {len(drifted) - 3} more" if len(drifted) > 3 else ""
        yield (
            f"Worse than the reference, without an alarm: {words}{more}. If it is meant to stay, make the references "
            "anew."
        )


def _raised(verdict: Verdict, test: str, nights: Sequence[Night]) -> Raised:
    assert verdict.alarm is not None
    names = [night.name for night in nights]
    began = names.index(verdict.alarm.night)
    since, before = (
        [job for night in some for job in night.jobs if job.key == verdict.key and job.figures]
        for some in (nights[began:], nights[max(0, began - BEFORE) : began])
    )
    changed = what_changed(_states(before), _states(since))
    if not changed:  # the alarm may begin a night early or late, by one that was off by itself
        of_began, last = (nights[began].name, before[-1].night if before else "")
        surely = [job for job in since if job.night != of_began]
        changed = what_changed(_states(job for job in before if job.night != last), _states(surely))
    who = MACHINE if verdict.figure == CANARY else culprit(verdict.key.test, since, before)
    return Raised(verdict, test, who, tuple(changed))


def _states(jobs: Iterable[NightJob]) -> list[dict[str, str]]:
    return [dict(job.state) for job in jobs]
