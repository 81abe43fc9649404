"""The page of a system's nights shows every figure that is judged, night by night, with what changed and when."""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

import pandas as pd

from reports import text
from reports.columns import columns_of
from reports.nights import chart
from reports.nights.chart import MOST_NIGHTS, Mark, Track
from reports.nights.followed import Followed, FollowedSystem, frame
from reports.nights.history import Night
from reports.nights.judge import GIVEN_UP
from reports.nights.night_page import NAME, notice
from reports.nights.table import Amount, read, said, verdict_column
from reports.page import Block, Column, Download, Facts, Figure, Figures, Notices, Page, Paragraph, Section, Table
from systems.references import worse_by

MOST_CHARTS = 60
LEAD = "Every figure that is judged, night by night, the tests with a figure that got worse first."
READING = (
    "A dot is a night, the median of its jobs; a pale stroke spans the jobs where there are several. The line is what "
    "the nights before let expect, and 95 of 100 nights lie in the band while nothing changes. Red squares are nights "
    "with an alarm. Dashes stand where the level changed, red for the worse and green for the better. Ticks below are "
    "nights in which the machine differed from the night before: tall ones in versions or settings, short ones in "
    "nothing but the commit or the nodes; pointed at, they say how. A triangle at the edge is a night farther off."
)
QUIET = ("commit ", "nodes: ")
"""Words that begin so are of what differs from night to night anyway."""
ALARM, EVENTFUL, SAME, UNKNOWN, ENDED = range(5)
"""Figures are ranked by how much there is to see of them, most first."""


def page(system: FollowedSystem) -> Page:
    """The page has a chart of each figure, or of the most eventful ones where they are many."""
    ranked = sorted(system.figures, key=lambda one: (interest(one, len(system.nights)), one.test, one.of.figure))
    seen = [one for one in ranked if one.of.nights[-1] >= len(system.nights) - MOST_NIGHTS][:MOST_CHARTS]
    frames = {id(one): frame(one, system.nights) for one in ranked}
    sections = [_summary(system, drawn=len(seen)), _changes(system, ranked), *_charts(system, seen, frames)]
    if ranked:
        sections.append(_all(system, ranked, frames))
    return Page(f"History of {system.name}", LEAD, tuple(sections), "")


def interest(one: Followed, nights: int) -> int:
    """Say how much there is to see, from ALARM to ENDED, where the system has so many nights."""
    latest = one.latest
    if one.of.nights[-1] < nights - GIVEN_UP:
        return ENDED
    if latest and latest.alarm:
        return ALARM
    if one.changes or one.alarms:
        return EVENTFUL
    return SAME if latest and latest.word == "same" else UNKNOWN


def _summary(system: FollowedSystem, drawn: int) -> Section:
    nights, figures = system.nights, system.figures
    first, last = (f"{night.began:%Y-%m-%d}" for night in (nights[0], nights[-1]))
    facts = (
        (f"{len(nights):,}", "nights", f"{first} to {last}" if first != last else first),
        (f"{sum(len(night.jobs) for night in nights):,}", "jobs", "of all nights"),
        (f"{len({one.of.key for one in figures}):,}", "tests", "that measured something"),
        (f"{len(figures):,}", "figures", "that are judged"),
        (f"{sum(len(one.changes) for one in figures):,}", "changes of level", "of all figures"),
    )
    blocks: list[Block] = [
        Notices((notice(system, links=[(f"{NAME}.html#{system.page}", "Last night")]),)),
        Facts(facts),
    ]
    if drawn:
        blocks.append(Paragraph(READING))
    if drawn < len(figures):
        blocks.append(
            Paragraph(
                f"{drawn:,} of {text.plural(len(figures), 'figure')} are drawn: first those with an alarm, a change of "
                "level or a verdict other than same. All figures and nights are in the table and in the CSV at the end."
            )
        )
    return Section("In short", tuple(blocks), "short")


def _changes(system: FollowedSystem, ranked: Iterable[Followed]) -> Section:
    rows = [
        {
            "at": at, "night": text.clean(system.nights[at].name, 40), "test": one.test,
            "figure": text.clean(one.of.figure, 80), "change": change,
            "way": _way(one, change), "updated": "; ".join(one.updates.get(at, ())),
        }
        for one in ranked
        for at, change in one.changes.items()
    ]  # fmt: skip
    if not rows:
        return Section("Changes of level", (Paragraph("No figure has changed its level."),), "changes")
    data = pd.DataFrame(rows).sort_values("at", ascending=False, kind="stable")
    columns = columns_of(
        "night test figure",
        Column("Change", "change", text.signed),
        Column("For the", "way", numeric=False, bad=frozenset({"worse"})),
        "updated",
    )
    note = (
        "Nights with which another level began, newest first. One for the worse is an alarm until another for the "
        "better undoes it; the night may be off by one or two."
    )
    return Section("Changes of level", (Table("Change points", columns, data, "changes", note),), "changes")


def _way(one: Followed, change: float) -> str:
    return "worse" if change * worse_by(one.of.unit) > 0 else "better"


def _charts(system: FollowedSystem, seen: Sequence[Followed], frames: dict[int, pd.DataFrame]) -> Iterable[Section]:
    """Make a section a test, with the figures of all its points."""
    names = text.slugs(f"{one.test} {one.of.figure}" for one in seen)
    drawn: dict[str, list[Figure]] = {}
    for one, name in zip(seen, names, strict=True):
        drawn.setdefault(one.of.key.test, []).append(_figure(system, one, f"figure-{name}", frames[id(one)]))
    for (test, figures), slug in zip(drawn.items(), text.slugs(drawn), strict=True):
        yield Section(text.clean(test, 80) or "Unnamed test", (Figures(tuple(figures)),), f"test-{slug}")


def _figure(system: FollowedSystem, one: Followed, name: str, data: pd.DataFrame) -> Figure:
    nights = system.nights
    point = one.test.removeprefix(text.clean(one.of.key.test, 120)).strip(" ,")
    title = ", ".join(filter(None, (point, text.clean(one.of.figure, 80))))
    values, least, most, usual, low, high = (
        data[key].tolist() for key in ("median", "least", "most", "expected", "low", "high")
    )
    track = Track(
        [night.name for night in nights], one.of.unit, one.of.nights, values, least, most, one.alarms, usual, low, high,
        list(_marks(one, nights)),
    )  # fmt: skip
    description = f"{one.test}. {_description(one, nights)}"
    return Figure(title, _caption(one, nights), chart.chart(track), data, name, description)


def _marks(one: Followed, nights: Sequence[Night]) -> Iterable[Mark]:
    for at, change in one.changes.items():
        way = _way(one, change)
        since = f"since the night {text.clean(nights[at].name, 40)}"
        words = f"{text.signed(change)}, {way}, {since}: {'; '.join(one.updates.get(at, ())) or 'no update'}"
        yield Mark(at, words, "worse" if way == "worse" else "better", text.signed(change))
    for at, updates in one.updates.items():
        quiet = all(words.startswith(QUIET) for words in updates)
        yield Mark(at, f"{text.clean(nights[at].name, 40)}: {'; '.join(updates)}", "quiet" if quiet else "update")


def _caption(one: Followed, nights: Sequence[Night]) -> str:
    latest, at = one.latest, one.of.nights[-1]
    when = "Last night" if at == len(nights) - 1 else f"Not run since the night {text.clean(nights[at].name, 40)}; then"
    now = read(Amount(median(one.of.values[-1]), one.of.unit))
    if latest is None:
        return f"{when} {now}, from before the references."
    if latest.word == "unknown":
        return f"{when} {now}: {latest.reason}."
    ends = f"{text.signed(latest.low)} to {text.signed(latest.high)}"
    usual = read(Amount(latest.usual, latest.unit))
    words = f"{when} {now}, {text.signed(latest.change)} ({ends}) against {usual}: {latest.word}"
    alarm = f", alarm since the night {text.clean(latest.alarm.night, 40)}" if latest.alarm else ""
    cut = f" The last {MOST_NIGHTS} of {len(nights):,} nights; the CSV has all." if len(nights) > MOST_NIGHTS else ""
    return f"{words}{alarm}.{cut}"


def _description(one: Followed, nights: Sequence[Night]) -> str:
    said = [f"{text.plural(len(one.of.nights), 'night')} with this figure", _caption(one, nights).rstrip(".")]
    said.append(f"{text.plural(len(one.alarms), 'night')} with an alarm")
    said += [
        f"{text.signed(change)} since the night {text.clean(nights[at].name, 40)}" for at, change in one.changes.items()
    ]
    return "; ".join(said) + "."


def _all(system: FollowedSystem, ranked: Sequence[Followed], frames: dict[int, pd.DataFrame]) -> Section:
    columns = columns_of(
        verdict_column(missing="none"),
        "test figure nights last",
        Column("Then", "value", read),
        Column("Expected", "usual", read, missing="none"),
        "change changes partition grid precision options",
        missing={"change": "", "grid": "none"},
    )
    data = pd.DataFrame([_row(one, system.nights) for one in ranked], dtype=object)
    table = Table("Figures, each by its last night", columns, data, "figures")
    every = pd.concat([frames[id(one)] for one in ranked], ignore_index=True)
    words = f"Every figure in every night, {len(every):,} rows, also of the figures that are not drawn:"
    return Section("All figures", (table, Download(words, every, "nights")), "all")


def _row(one: Followed, nights: Sequence[Night]) -> dict[str, Any]:
    latest, key = one.latest, one.of.key
    judged = latest is not None and latest.word != "unknown"
    return {
        "verdict": said(latest) if latest else None,
        "test": one.test, "figure": text.clean(one.of.figure, 80), "nights": len(one.of.nights),
        "last": text.clean(nights[one.of.nights[-1]].name, 40),
        "value": Amount(median(one.of.values[-1]), one.of.unit),
        "usual": Amount(latest.usual, one.of.unit) if latest and judged else None,
        **{name: getattr(latest, name) if judged else None for name in ("change", "low", "high")},
        "changes": len(one.changes), "partition": text.clean(key.partition, 80), "grid": text.clean(key.grid, 80),
        "precision": text.clean(key.precision, 40), "options": text.clean(key.options, 300),
    }  # fmt: skip
