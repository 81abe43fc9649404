"""Report of a night: its verdicts, episodes that opened, stay open or are over, and how much chance is in them."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self

import pandas as pd
from junitparser import Failure, JUnitXml, Skipped, TestCase, TestSuite
from tabulate import tabulate

from reports import text
from reports.columns import columns_of
from reports.nights.detector import EARLY, FALSE_ALARMS_A_YEAR, LEAST_EARLY
from reports.nights.episodes import Episode, EpisodeState, find_episodes, growth, nights_of_a_month
from reports.nights.judge import FigureHistory, Judgement, Verdict, Word, judge_nights
from reports.nights.levels import BASELINE
from reports.nights.nodes import LONG, describe, describe_nodes, nodes_of, slow_nodes
from reports.nights.shape import find_slope
from reports.page import Column, Table
from reports.read.history import SKIPPED, History, Night, NightJob
from systems.references import FEWEST_JOBS, Key, References

MOST_TESTS = 2
"""Tests that are named of an episode that has more."""
RANKS: Sequence[Word] = ("failed", "worse", "better", "same", "unknown")
"""Order of verdicts in a list, after those with an open slowdown."""
NOTHING_KEPT = "ReFrame has kept nothing of it, as where the night's time limit is reached"
"""Reason of a test that a night had to run, without any job."""
OVER: Mapping[EpisodeState, str] = {
    "closed": "its figures are as before",
    "learnt": "its figures are as before, and were as slow in {runs} runs of nights in all",
    "explained": "its references were made anew, or its figures are not measured any more",
}
"""Ends of episodes in words, which nodes don't explain."""
FINE, WORSE, UNKNOWN = 0, 1, 2
"""Exit codes of par4d verdict."""


@dataclass(frozen=True, slots=True)
class NightReport:
    """Verdicts of a night, and what explains them."""

    system: str
    night: Night
    verdicts: tuple[Verdict, ...]
    """The worst first."""
    episodes: tuple[Episode, ...]
    """Episodes found up to the night, in that order: open or over as after it, else as known after the last night."""
    recurring: tuple[str, ...]
    """Sentences about slowdowns that come and go, in the report of the last night alone."""
    remarks: tuple[str, ...]
    """Other facts, in sentences."""
    names: Mapping[Key, str]
    """A unique name of each test that has ever measured something."""
    judged: Judgement
    """All nights."""
    at: int
    """Position of the night among them."""

    def named(self, key: Key) -> str:
        return self.names.get(key) or text.clean(plain_name(key), 120)

    @property
    def counts(self) -> Counter[Word]:
        return Counter(verdict.word for verdict in self.verdicts)

    @property
    def opened(self) -> list[Episode]:
        """Return the episodes whose alarm the night raises."""
        return [one for one in self.episodes if one.found == self.at and one.ended is None]

    @property
    def still_open(self) -> list[Episode]:
        return [one for one in self.episodes if one.found < self.at and one.ended is None]

    @property
    def over(self) -> list[Episode]:
        """Return the episodes whose end the night shows."""
        return [one for one in self.episodes if one.ended == self.at]

    @property
    def lines(self) -> list[str]:
        """Return a sentence about each episode that opened, stays open, or is over."""
        return [self.tell(one) for one in (*self.opened, *self.still_open, *self.over)]

    def episode_of(self, verdict: Verdict) -> Episode | None:
        """Return the episode that a figure's open slowdown is in."""
        return next((one for one in self.episodes if verdict.slowdown in one.slowdowns), None)

    def tell(self, episode: Episode) -> str:
        return tell(episode, self.judged.nights, self.named)

    @property
    def code(self) -> int:
        if self.opened or self.counts["failed"]:
            return WORSE
        return UNKNOWN if self.counts["unknown"] or not self.verdicts else FINE

    @property
    def headline(self) -> str:
        counts, nights, still = self.counts, self.judged.nights, sorted(self.still_open, key=lambda one: one.since)
        figures = [figure for one in self.opened for figure in one.figures]
        joined = [
            figure
            for one in still
            for figure, slowdown in zip(one.figures, one.slowdowns, strict=True)
            if slowdown.found == self.at
        ]
        far = sum(verdict.far for verdict in self.verdicts)
        parts = [
            f"{len(figures)} got worse ({_tests(figures, self.named)})" if figures else "",
            f"{len(joined)} more of an open episode got worse ({_tests(joined, self.named)})" if joined else "",
            f"{text.plural(len(still), 'episode')} open since {nights[still[0].since].name}" if still else "",
            f"{text.plural(len(self.over), 'episode')} over" if self.over else "",
            f"{far} far off, which is no alarm yet" if far else "",
            *(f"{counts[word]} {word}" for word in RANKS if counts[word] and word != "worse"),
        ]
        judged = counts["same"] + counts["better"] + counts["worse"]
        quiet = f"nothing {'new ' if still else ''}got worse, " if judged else "nothing could be judged, "
        said = "" if figures else quiet
        return f"{self.system}, night {self.night.name}: {said}{', '.join(filter(None, parts))}."


def night_reports(
    history: History, known: References | None, *, last: int = 1, night: str | None = None
) -> list[NightReport]:
    """Report the last nights, oldest first, or the one of that name."""
    judged, names, reports = judge_nights(history, known), name_tests(history), list[NightReport]()
    positions = [at for at, each in enumerate(history.nights) if night in (None, each.name)]
    for at in positions[-last:]:
        verdicts, partial = _without_result(history.nights[at])
        verdicts += (figure.verdicts[at] for figure in judged.figures if at in figure.verdicts)
        verdicts.sort(key=lambda v: (not v.slowdown, RANKS.index(v.word), plain_name(v.key), v.figure))
        episodes = tuple(find_episodes(judged, at))
        recurring = tuple(_recurring(judged, episodes, names)) if at == positions[-1] else ()
        early = sum(at in figure.jobs and [*figure.jobs].index(at) < EARLY for figure in judged.watched)
        drifted = ", ".join(_drifts(judged, at, names))
        remarks = (*history.remarks, *_remarks(history, partial, early, known, verdicts, drifted))
        facts = (tuple(verdicts), episodes, recurring, remarks, names, judged, at)
        new = NightReport(history.system, history.nights[at], *facts)
        reports.append(new)
    return reports


def _without_result(night: Night) -> tuple[list[Verdict], list[str]]:
    """Return verdicts of a night's tests without a result, and a remark on each with results of some jobs only."""
    verdicts, remarks, by_test = list[Verdict](), list[str](), defaultdict[object, list[NightJob]](list)
    for job in night.jobs:
        by_test[job.key.partition, job.key.name].append(job)  # parts of a key that a job without a result has
    measured = {job.key.name for job in night.jobs if job.figures}
    for jobs in by_test.values():
        key, name = jobs[0].key, plain_name(jobs[0].key)
        failed = [job for job in jobs if job.failed]
        without = [job for job in jobs if job.reason and not job.failed]
        if without and any(job.figures for job in jobs):
            remarks.append(f"{len(without)} of {len(jobs)} jobs of {name}: {without[0].reason}.")
        elif without and key.name in measured and all(job.reason == SKIPPED for job in jobs):
            remarks.append(f"{name} on {key.partition}: {SKIPPED}.")  # another partition has room for it
        elif without and not failed:
            verdicts.append(Verdict(without[0].key, "", "", "unknown", 0, reason=without[0].reason))
        if failed:
            count = f"{len(failed)} of {len(jobs)} jobs: " if len(failed) < len(jobs) else ""
            verdicts.append(Verdict(failed[0].key, "", "", "failed", 0, reason=f"{count}{failed[0].reason}"))
    there = {job.key.name for job in night.jobs}
    lost = [Key("", test, point, "", 0, "", "") for test, point in night.chosen if (test, point) not in there]
    return verdicts + [Verdict(key, "", "", "unknown", 0, reason=NOTHING_KEPT) for key in lost], remarks


def name_tests(history: History) -> dict[Key, str]:
    """Name each measured test by its name and point, and by its other settings where names would clash."""
    keys = dict.fromkeys(job.key for job in history.jobs if job.figures)
    uses, seen, names = Counter(map(plain_name, keys)), Counter[str](), dict[Key, str]()
    for key in keys:
        name = plain_name(key)
        if uses[name] > 1:
            name = ", ".join(filter(None, (name, key.partition, key.grid, key.precision)))
        name = text.clean(name, 120)
        seen[name] += 1
        names[key] = name + (f", options {seen[name]}" if seen[name] > 1 else "")
    return names


def plain_name(key: Key) -> str:
    return " ".join(word for word in (key.test, key.point.replace("point=", "")) if word)


def _remarks(
    history: History,
    partial: Iterable[str],
    early: int,
    known: References | None,
    verdicts: Sequence[Verdict],
    drifted: str,
) -> Iterable[str]:
    if judged := sum(verdict.word in ("worse", "same", "better") for verdict in verdicts):
        figures = text.plural(judged, "figure")
        yield f"Chance: with {figures} judged, a false episode may open {FALSE_ALARMS_A_YEAR:g} times a year."
        if early:
            few = f"Of {text.plural(early, 'figure')} with {EARLY} nights or fewer"
            yield f"{few} only a change of {text.percent(LEAST_EARLY)} or more counts."
    yield from partial
    if known is None:
        system, make = history.system, f"run `par4d reference make --system {history.system}`"
        yield f"There are no references of {system}: with {FEWEST_JOBS} jobs of a test, {make}."
    if drifted:
        stays = "If it is meant to stay, make the references anew."
        yield f"Worse than the reference, without an episode: {drifted}. {stays}"


def _drifts(judged: Judgement, at: int, names: Mapping[Key, str]) -> Iterable[str]:
    """Write the drift of each figure, the largest first, and its slope in the last nights, if there is one for sure."""
    figures = [figure for figure in judged.watched if at in figure.verdicts and figure.verdicts[at].drift]
    for figure in sorted(figures, key=lambda one: -one.verdicts[at].drift):
        nights, values = figure.follow(at)
        last = [judged.nights[each] for each in nights[-BASELINE:]]
        a_month = growth(find_slope(values[-BASELINE:]), nights_of_a_month(last))
        by = text.percent(figure.verdicts[at].drift)
        sure = f", {slope(a_month)} in {len(last)} nights" if a_month[1] > 0 else ""
        yield f"{names[figure.key]} {figure.figure} (by {by}{sure})"


def tell(episode: Episode, nights: Sequence[Night], named: Callable[[Key], str]) -> str:
    """Write what got worse, by how much, since when, the culprit, and what of the machine changed then; or its end."""
    worst, size, others = episode.figures[0], episode.sizes[0], len(episode.figures) - 1
    since, by = nights[episode.since].name, text.percent(size)
    way = "longer" if worst.unit == "s" else "worse"
    of_it = all(figure.key == worst.key for figure in episode.figures)
    of = "of it" if of_it else f"({_tests(episode.figures[1:], named)})"
    also = f", and {text.plural(others, 'more figure')} {of} got worse" if others else ""
    what, of_nodes = f"{named(worst.key)}: {worst.figure}", describe(episode.nodes)
    crept = f"A creep: {slope(episode.a_month)}" if episode.shape.kind == "creep" else ""
    if episode.ended is not None:
        explained = episode.nodes.outcome == "explained"
        because = of_nodes if explained else OVER[episode.state].format(runs=episode.recurrence.runs)
        over = f"It is over since the night {nights[episode.ended].name}: {because}"
        changed = f"Changed then: {'; '.join(episode.changed)}" if episode.changed else ""
        sentences = [f"{what} was {by} {way} from the night {since} on{also}", crept, changed, over]
    else:
        no_nodes = episode.nodes.outcome == "unknown" and not episode.nodes.slow
        facts = {
            "which part of the test": f"Culprit: {episode.part}" if episode.part else "",
            "what changed": f"Changed then: {'; '.join(episode.changed)}" if episode.changed else "",
            f"whether nodes explain it ({of_nodes})": "" if no_nodes else f"{of_nodes[0].upper()}{of_nodes[1:]}",
        }
        unknown = ", ".join(fact for fact, known in facts.items() if not known)
        is_worse = f"{what} is {by} {way} since the night {since}{also}"
        sentences = [is_worse, crept, *facts.values(), f"Not known: {unknown}" if unknown else ""]
    return " ".join(f"{sentence}." for sentence in sentences if sentence)


def slope(a_month: tuple[float, float, float]) -> str:
    """Write how fast a creep makes its worst figure worse."""
    slope, low, high = map(text.percent, a_month)
    return f"{slope} worse a month ({low} to {high})"


def _recurring(judged: Judgement, episodes: Sequence[Episode], names: Mapping[Key, str]) -> Iterable[str]:
    """Write in how many nights jobs were on slow nodes, and which other figures got slower as often in how many."""
    lately = range(max(0, len(judged.nights) - LONG[-1]), len(judged.nights))
    once = [one for one in episodes if one.state != "learnt" and one.nodes.outcome != "explained"]
    changes = [at for one in once for at in (one.since, one.ended) if at is not None]
    slow = slow_nodes(judged.nights, LONG, changes)
    is_slow = {each.node for each in slow}
    told = [frozenset(at for at in lately if any(nodes_of(job) & is_slow for job in judged.nights[at].jobs))]
    if slow:
        on_slow = f"{len(told[0])} of {text.plural(len(lately), 'night')} had jobs on nodes that are slower"
        yield f"{on_slow}: {describe_nodes(slow)}."
    for one in sorted(episodes, key=lambda one: -one.sizes[0]):
        nights = one.recurrence.nights
        if one.state == "learnt" and all(2 * len(nights & others) < len(nights) for others in told):
            told.append(nights)
            often = f"{len(nights)} of {one.recurrence.of} nights, in {text.plural(one.recurrence.runs, 'run')}"
            figures = f"{text.plural(len(one.figures), 'figure')} ({_tests(one.figures, names.__getitem__)})"
            yield f"{often}: {figures} {text.percent(one.sizes[0])} worse."


def _tests(figures: Iterable[FigureHistory], named: Callable[[Key], str]) -> str:
    """Name the tests of figures, as far as there are few."""
    tests = list(dict.fromkeys(named(figure.key) for figure in figures))
    more = tests[MOST_TESTS:]
    return ", ".join([*tests[:MOST_TESTS], *([text.plural(len(more), "more test")] if more else [])])


UNITS: Mapping[str, Callable[[float], str]] = {"s": text.seconds, "B": text.memory, "x": text.times}
NOTE = (
    "The change is of the night's median by what the nights before let expect; 95 of 100 nights without "
    "any change lie within its interval. An episode takes several nights that agree; better is what lately has changed "
    "so. A test that failed has no figures; a figure without a reference, or of few nights, is unknown, not the same."
)
CHANGE = Column("Change (95 %)", "change", text.signed, missing="none", spread=("low", "high"))
MARKUP = str.maketrans({char: f"\\{char}" for char in "\\|*_`["} | {"<": "&lt;", "&": "&amp;"})


class Amount(float):
    """Number with a unit: sorted, and written to a CSV, as a number; read with the unit."""

    unit: str

    def __new__(cls, value: float, unit: str = "") -> Self:
        made = super().__new__(cls, value)
        made.unit = unit
        return made

    def read(self) -> str:
        return UNITS[self.unit](self) if self.unit in UNITS else text.si(self, self.unit)


def row(test: str, verdict: Verdict) -> dict[str, object]:
    """Write a verdict as a row, in text that is safe to show."""
    also = ", episode" if verdict.slowdown and verdict.word != "worse" else ""
    return {
        "verdict": f"{verdict.word}{also}",
        "test": test,
        "figure": text.clean(verdict.figure, 80),
        "unit": verdict.unit,
        "value": Amount(verdict.value, verdict.unit),
        "usual": Amount(verdict.usual, verdict.unit),
        **{name: getattr(verdict, name) for name in ("change", "low", "high")},
        "jobs": verdict.jobs or None,
        "why": text.clean(verdict.reason, 400),
    }


def table(report: NightReport) -> Table:
    """List the verdicts, the worst first."""
    columns = columns_of(
        Column("Verdict", "verdict", numeric=False, bad=frozenset({"worse", "unknown, episode", "failed"})),
        "test figure",
        Column("Tonight", "value", Amount.read, missing="none"),
        Column("Expected", "usual", Amount.read, missing="none"),
        CHANGE,
        "jobs why",
        missing={"figure": "all", "jobs": "none", "why": ""},
    )
    rows = [row(report.named(verdict.key), verdict) for verdict in report.verdicts]
    return Table("Verdicts", columns, pd.DataFrame(rows, dtype=object), "verdicts", NOTE)


def as_text(report: NightReport) -> str:
    lines = [f"  {sentence}" for sentence in report.lines]
    return "\n".join([report.headline, *lines, "", _tabulated(report, "plain"), *report.recurring, *report.remarks, ""])


def as_markdown(report: NightReport) -> str:
    lines = "".join(f"* {_marked(sentence)}\n" for sentence in report.lines)
    parts = [f"**{_marked(report.headline)}**\n", lines, _tabulated(report, "github", _marked)]
    return "\n".join([*filter(None, parts), *map(_marked, (*report.recurring, *report.remarks)), ""])


def _tabulated(report: NightReport, form: str, write: Callable[[str], str] = str) -> str:
    if not report.verdicts:
        return ""
    verdicts = table(report)
    rows = [[write(cell.text) for cell in cells] for cells in verdicts.rows()]
    return f"{tabulate(rows, [column.title for column in verdicts.columns], form, disable_numparse=True)}\n"


def _marked(words: str) -> str:
    """Escape what Markdown would take as markup."""
    return text.clean(words, 2000).translate(MARKUP)


def as_junit(report: NightReport) -> str:
    """Write each figure as a test case: a failure in the night that opens its episode or where its test failed, and
    skipped while the episode is open or where the figure is unknown.
    """
    cases = []
    for verdict in report.verdicts:
        case = TestCase(text.clean(verdict.figure) or "run", classname=report.named(verdict.key))
        episode = report.episode_of(verdict)
        why = text.clean(report.tell(episode) if episode else verdict.reason, 2000)
        if episode in report.opened or verdict.word == "failed":
            case.result = [Failure(why)]
        elif episode or verdict.word == "unknown":
            case.result = [Skipped(why)]
        cases.append(case)
    return junit_file(report.system, cases, report.night.began)


def junit_file(name: str, cases: Iterable[TestCase], began: datetime) -> str:
    """Write a suite of these cases."""
    suite, file = TestSuite(f"par4d {text.clean(name)}"), JUnitXml()
    suite.timestamp = began.isoformat(timespec="seconds")
    suite.add_testcases(list(cases))
    file.add_testsuite(suite)
    file.update_statistics()
    return f"{file.tostring().decode()}\n"
