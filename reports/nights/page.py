"""Page of a system's nights: whether anything got worse last night, every judged figure, and how nights are judged."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import pandas as pd
from matplotlib.figure import Figure as Drawing

from engine.errors import EngineError
from reports import text
from reports.columns import columns_of
from reports.nights import culprit, detector, levels, noise, proof
from reports.nights.culprit import what_changed
from reports.nights.episodes import TOGETHER
from reports.nights.exports import episode_data
from reports.nights.judge import STEADIER, UNSTEADY_SHARE
from reports.nights.levels import Slowdown
from reports.nights.nodes import LONG
from reports.nights.report import CHANGE, FINE, WORSE, Amount, NightReport, night_reports, row, slope, table
from reports.page import Column, Download, Figure, Figures, Notice, Notices, Page, PageSection, Paragraph, Table
from reports.plots.canvas import Scale
from reports.plots.lines import Line, scatter
from reports.read.history import NODES, History, Night
from systems import references
from systems.references import FEWEST_JOBS, Key, worse_by

MOST_CHARTS = 60
MOST_NIGHTS = 180
"""Most nights in a chart, the last ones."""
FAR, LATELY = 3.0, 12
"""Values farther than FAR widths beyond the usual range stand at the edge, but for the last LATELY nights."""
LARGEST = 9e4
"""Largest value on a scale, in the unit that suits most nights: larger ones have names too long for it."""
LEAD = "Whether anything got worse last night, through what, and every figure that is judged, night by night."
READING = (
    "A dot is a night, the median of its jobs, and red in nights of an episode. The line is what the nights before "
    "let expect, and 95 of 100 nights lie in the band while nothing changes. An episode or a gain "
    "began last at the dotted line. A ring is a night in which versions or settings of the machine differed from the "
    "night before. What stands at the edge may be farther off. The CSV has every figure in every night, also those not "
    "drawn."
)
EPISODES = (
    "Figures that got worse together, newest first. The night that found an episode raised its alarm. Closed: it came "
    "back by itself; learnt: its figures were as slow in other nights, too; explained: by nodes, by references made "
    "since, or as it isn't measured any more. The beginning may be off by a night or two, that of a creep by more."
)
RECURRING = "Slower nights that came and went more than once. A figure that gets as slow again raises no alarm then."
GAINS = "Figures whose level got better, and was not worse before. The night may be off by one or two."
QUIET = ("commit ", f"{NODES}: ")
"""Beginnings of changes that nights have anyway, without any update."""
METHODS = text.paragraphs(
    "Nights",
    jobs=FEWEST_JOBS,
    nights=levels.FEWEST,
    false_alarms=detector.FALSE_ALARMS_A_YEAR,
    least=text.percent(references.LEAST),
    baseline=levels.BASELINE,
    early=detector.EARLY,
    least_early=text.percent(detector.LEAST_EARLY),
    winsor=noise.WINSOR_LIMIT,
    margin=detector.MARGIN,
    returned=detector.RETURNED,
    habit=detector.HABIT,
    together=TOGETHER,
    shortest=levels.SHOWN,
    longest=detector.WINDOWS[-1],
    given_up=levels.GIVEN_UP,
    long=LONG[-1],
    steadier=" ".join(
        f"Where {other} is measured, {noisy} may open {text.percent(UNSTEADY_SHARE)} of the false episodes of others."
        for noisy, other in STEADIER.items()
    ),
    counts=text.percent(culprit.COUNTS),
    apart=text.percent(culprit.NODE_APART),
)
"""How nights are judged, in a paragraph each."""


@dataclass(frozen=True, slots=True)
class NightsPage:
    """Page of a system, its name, and the notice of its last night on other pages."""

    name: str
    page: Page
    notice: Notice


def pages(histories: Sequence[History]) -> list[NightsPage]:
    titled = text.titled(histories, lambda history: history.system)
    return [_page(f"nights-{slug}", history) for slug, _, history in titled]


def _page(name: str, history: History) -> NightsPage:
    known, why = None, tuple[str, ...]()
    if history.system in {path.stem for path in references.FOLDER.glob("*.yaml")}:  # whatever the name may be
        try:
            known = references.references(history.system)
        except (EngineError, OSError) as error:
            why = (str(error),)
    (report,) = night_reports(history, known)
    notice, data = _notice(report), _rows(report)
    verdicts = table(report) if report.verdicts else Paragraph("Its tests have measured nothing that is judged.")
    nights, jobs = text.plural(len(history.nights), "night"), text.plural(len([*history.jobs]), "job")
    count = f"There are {nights} of {history.system} since {history.nights[0].began:%Y-%m-%d}, of {jobs}."
    remarks = [Paragraph(text.clean(words, 1000)) for words in (*why, *report.remarks, count)]
    sections = [PageSection("Last night", (Notices((notice,)), verdicts, *remarks), "night")]
    sections.append(_episodes(report))
    if report.recurring:
        lines = (*(text.clean(line, 1000) for line in report.recurring), RECURRING)
        sections.append(PageSection("Slowdowns that come and go", [*map(Paragraph, lines)], "recurring"))
    sections += [_figures(data, history.nights), *_gains(data)] if len(data) else []
    simulated = proof.proof()
    words = [*METHODS, *(proof.words(simulated) if simulated else [])]
    shown = proof.tables(simulated) if simulated else ()
    sections.append(PageSection("How nights are judged", (*map(Paragraph, words), *shown), "methods"))
    title = f"Nights of {text.clean(history.system, 24)}"
    return NightsPage(
        name, Page(sections, title=title, lead=LEAD), replace(notice, details=(), links=((f"{name}.html", title),))
    )


def _rows(report: NightReport) -> pd.DataFrame:
    """Make a row of each judged figure in each night that has it: its verdict, the least and the most of its jobs, the
    beginning of the episode that it is in, the change of its level with that night, and what was updated then.
    """
    judged, rows, slow = report.judged, [], defaultdict[tuple[Key, str], list[tuple[int, Slowdown]]](list)
    for episode in report.episodes:
        for figure, slowdown in zip(episode.figures, episode.slowdowns, strict=True):
            slow[figure.key, figure.figure].append((episode.since, slowdown))
    for figure in judged.figures:
        before, episodes = list[Mapping[str, str]](), slow[figure.key, figure.figure]
        sizes = {gain.since: gain.size for gain in judged.gains(figure)}
        sizes |= {since: slowdown.size for since, slowdown in episodes}
        for at, jobs in figure.jobs.items():
            values, states, size = figure.measured(jobs), [job.state for job in jobs], sizes.get(at)
            updates = [words for words in what_changed(before, states) if not words.startswith(QUIET)]
            verdict = figure.verdicts[at]
            since = [since for since, one in episodes if since <= at and (one.last is None or at <= one.last)]
            before = states
            rows.append(
                {
                    "at": at,
                    "night": text.clean(judged.nights[at].name, 40),
                    "began": judged.nights[at].began.isoformat(),
                    **row(report.names[figure.key], verdict),
                    "least": min(values),
                    "most": max(values),
                    "episode_since": text.clean(judged.nights[since[-1]].name, 40) if since else "",
                    "level": math.nan if size is None else math.expm1(worse_by(figure.unit) * size),
                    "way": "" if size is None else "worse" if size > 0 else "better",
                    "updated": text.clean("; ".join(updates), 400),
                }
            )
    return pd.DataFrame(rows)


def _notice(report: NightReport) -> Notice:
    """Summarise the night in one line, and its episodes in a sentence each."""
    headline, lines = text.clean(report.headline), tuple(text.clean(line, 1000) for line in report.lines)
    if report.code == WORSE:
        return Notice("worse", "Worse" if report.opened else "Failed", headline, lines)
    if report.code == FINE and not report.still_open:
        return Notice("fine", "Fine", headline, lines)
    return Notice("unknown", "Still worse" if report.still_open else "Not all judged", headline, lines)


def _episodes(report: NightReport) -> PageSection:
    """List the episodes, the newest first."""
    rows = []
    for one in reversed(report.episodes):
        known = episode_data(report, one)
        figures = [f"{each['test']} {each['figure']} ({text.percent(each['size'])})" for each in known["figures"]]
        known |= {"figures": ", ".join(figures), "updated": "; ".join(known["changed"])}
        known["shape"] = "step" if one.shape.kind == "step" else f"creep, {slope(one.a_month)}"
        rows.append({key: text.clean(of, 1000) if isinstance(of, str) else of for key, of in known.items()})
    columns = columns_of(
        Column("State", "state", numeric=False, bad=frozenset({"open"})),
        Column("Worse by", "size", text.percent),
        Column("Figures", "figures", numeric=False),
        Column("Culprit", "part", numeric=False, missing="none shown"),
        "updated",
        Column("Nodes", "nodes", numeric=False),
        Column("Shape", "shape", numeric=False),
        Column("Since the night", "since", numeric=False),
        Column("Found", "found", numeric=False),
        Column("Over", "ended", numeric=False, missing="not yet"),
    )
    none = Paragraph("No figure has got worse.")
    listed = Table("Episodes", columns, pd.DataFrame(rows), "episodes", EPISODES)
    return PageSection("Episodes", (listed if rows else none,), "episodes")


def _figures(data: pd.DataFrame, nights: Sequence[Night]) -> PageSection:
    """Draw figures in an open episode first, then those that changed, and last those that are not measured any more."""
    ranked = []
    for (test, figure), rows in data.groupby(["test", "figure"]):
        last = rows.iloc[-1]
        ended, changed = last["at"] < len(nights) - levels.GIVEN_UP, rows["level"].notna().any()
        if last["at"] >= len(nights) - MOST_NIGHTS:
            ranked.append(((ended, not last["episode_since"], not changed), f"{test}, {figure}", rows))
    ranked = sorted(ranked, key=itemgetter(0, 1))[:MOST_CHARTS]
    figures = []
    for slug, title, (_, _, rows) in text.titled(ranked, itemgetter(1)):
        caption = _caption(rows.iloc[-1], len(nights))
        figures.append(Figure(title, caption, chart(rows, nights), rows, f"figure-{slug}", caption))
    download = Download(f"Every figure in every night, {len(data):,} rows:", data, "all")
    return PageSection("Figures", (Paragraph(READING), Figures(figures), download), "figures")


def _caption(last: pd.Series, nights: int) -> str:
    """Describe the figure when it was last measured."""
    when = "last night" if last["at"] == nights - 1 else f"in the night {last['night']}, the last one that has it"
    value, usual = (Amount(last[key], last["unit"]).read() for key in ("value", "usual"))
    if last["verdict"] == "unknown":
        return f"{value} {when}: {last['why']}."
    change = CHANGE.cell(tuple(last[key] for key in CHANGE.keys), failed=False).text
    episode = f", episode since the night {last['episode_since']}" if last["episode_since"] else ""
    return f"{value} {when}, {change} against {usual}: {last['verdict']}{episode}."


def _gains(data: pd.DataFrame) -> list[PageSection]:
    """List the changes for the better, where there are any."""
    better = data[data["way"] == "better"].sort_values("at", ascending=False, kind="stable")
    columns = columns_of("night test figure", Column("Change", "level", text.signed), "updated")
    return (
        [PageSection("Better since", (Table("Gains", columns, better, "gains", GAINS),), "gains")]
        if len(better)
        else []
    )


def chart(rows: pd.DataFrame, nights: Sequence[Night]) -> Drawing:
    """Draw a figure's rows of the last MOST_NIGHTS of these nights."""
    first = max(0, len(nights) - MOST_NIGHTS)
    shown, rows = nights[first:], rows[rows["at"] >= first]
    at, (factor, unit) = rows["at"] - first, _scale(rows["unit"].iloc[0], rows["value"].median())
    value, usual = ((rows[key].astype(float) / factor).clip(0, LARGEST) for key in ("value", "usual"))
    without = usual * (1 + rows["change"].astype(float))
    lower, upper = (without / (1 + rows[end].astype(float)) for end in ("high", "low"))
    low, high = value.quantile([0.05, 0.95])
    reach = FAR * max(high - low, 0.005 * high)
    near = value[value.between(low - reach, high + reach)]
    seen = pd.concat([near, value[-LATELY:], usual, pd.Series([lower.median(), upper.median()])])
    drawn = pd.DataFrame({"value": value, "usual": usual, "lower": lower, "upper": upper})
    drawn = drawn.clip(seen.min(), seen.max()).assign(at=at)
    slow, updated = drawn[rows["episode_since"] != ""], drawn[rows["updated"] != ""]
    groups = (
        Line.of(drawn, "at", "usual", "muted", "expected", kind="band").between(drawn, "lower", "upper"),
        Line.of(drawn, "at", "value", "blue", "night", kind="dots"),
        Line.of(slow, "at", "value", "red", "episode", kind="dots"),
        Line.of(updated, "at", "value", "gold", "updated", kind="rings"),
    )
    form = "%m-%d" if shown[0].began.date() != shown[-1].began.date() else "%H:%M"
    write = lambda tick: f"{shown[min(max(round(tick), 0), len(shown) - 1)].began:{form}}"  # noqa: E731
    span = f"{shown[0].began:%Y-%m-%d} to {shown[-1].began:%Y-%m-%d}"
    changed = at[rows["level"].notna()].max() - 0.5
    return scatter(groups, Scale(span, write=write), Scale(unit), upright=changed)


def _scale(unit: str, usual: float) -> tuple[float, str]:
    """Return the divisor of values, and their unit after it."""
    if unit == "B":
        return (2.0**30, "GiB") if usual >= 2**30 else (2.0**20, "MiB")
    if unit == "x" or (unit == "s" and usual >= 1):
        return 1.0, {"x": "times", "s": "seconds"}[unit]
    factor, letter = text.prefix(usual)
    return factor, f"{letter}{unit}"
