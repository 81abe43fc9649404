"""Tables of verdicts on published claims: values in the paper's unit, and what to run for those that wait."""

import math
import shlex
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import pandas as pd
from tabulate import tabulate

from engine.published import UNITS
from engine.published.claims import Claim, Target, costs
from engine.result.judges.reproduction import Judgement
from reports import text
from reports.columns import columns_of
from reports.frames.reproduction import VERDICTS, Finding, Judged, JudgedFigure
from reports.page import Column, Table
from reports.words import NOTES

GOOD, BAD = ("reproduces", "better"), ("differs",)
BY_SIGN = "{} (who is ahead)"
"""Verdict on another machine than the paper's."""
NOT_RUN = "not run"
"""Reason of a claim that a suite redoes, and that no result is of."""
COLUMNS = ("where", "part", "said", "measured", "jobs", "machine", "off", "verdict", "why", "of")


class Command(NamedTuple):
    """Command that redoes claims, and what it takes at most."""

    words: str
    node_hours: float | None
    places: tuple[str, ...]
    """Figures that it redoes a part of."""


def verdict_words(judgement: Judgement) -> str:
    """Write a verdict, and whether only who is ahead was judged."""
    told = judgement.verdict in GOOD + BAD
    return BY_SIGN.format(judgement.verdict) if judgement.by_sign and told else judgement.verdict


def published_text(target: Target, reading: int = 0) -> str:
    """Write what a paper says, by one of its readings; the others behind it."""
    if target.comparison is not None:
        ahead, behind, at = target.comparison
        return f"{ahead} ahead of {behind}{f', {at}' if at else ''}"
    said = [f"{one.bound} {one.text}".strip() for one in target.readings]
    first = said.pop(reading)
    return f"{first} (or {', '.join(said)})" if said else first


def point_text(target: Target) -> str:
    """Write what a number is of, where a claim has several: model and devices, over what, or its own words."""
    if target.comparison is not None:
        return ""
    number = target.readings[0]
    on = f"on {number.devices}" if number.devices is not None else ""
    gained = f"{number.gained} over {number.over}" if number.gained else f"over {number.over}" if number.over else ""
    return ", ".join(part for part in (" ".join(filter(None, (number.model, on))), gained, number.what) if part)


def writer(claim: Claim, target: Target) -> tuple[Callable[[float], str], str]:
    """Return what writes a measured value as the paper does, and the unit that follows it."""
    if target.comparison is not None:
        return text.signed, ""
    if claim.kind == "share" and claim.out_of:
        whole = claim.out_of
        return lambda value: text.significant(value * whole, 3), f"of {whole}"
    if claim.kind == "share":
        return text.gain, ""
    if claim.kind == "ratio":
        return lambda value: f"{text.significant(value)}x", ""
    unit = target.readings[0].unit
    return lambda value: text.significant(value / UNITS[unit]), unit


def measured_text(claim: Claim, finding: Finding) -> str:
    """Write what was measured with its interval; "" where nothing was."""
    if finding.sample is None:
        return ""
    write, unit = writer(claim, finding.target)
    low, high = finding.sample.interval
    interval = "interval not known"
    if math.isfinite(low) and math.isfinite(high):
        interval = f"{write(low)} to {write(high)}"
    elif claim.kind == "number" and math.isfinite(low) and low > 0:
        interval = f"{write(low)} or more"
    return f"{write(finding.sample.value)} ({interval}) {unit}".rstrip()


def off_text(claim: Claim, judgement: Judgement) -> str:
    """Write how far off a measurement is: per cent of numbers and ratios, points of shares, the lead of orders."""
    if not judgement.off:
        return ""
    if claim.kind == "share" and not judgement.by_sign:
        return f"{100 * judgement.off:+.1f} points".replace("-", "\u2212")
    return text.signed(judgement.off)


def _row(part: Judged, finding: Finding) -> dict[str, object]:
    claim, sample, judgement = part.claim, finding.sample, finding.judgement
    assert sample is not None
    several = len(claim.targets) > 1
    of = point_text(finding.target) if several and not judgement.by_sign else ""
    return {
        "part": ": ".join(filter(None, (claim.name, of))),
        "said": published_text(asked_of(finding), judgement.reading),
        "measured": measured_text(claim, finding),
        "jobs": sample.jobs,
        "machine": text.clean(finding.machine, 60),
        "off": off_text(claim, judgement),
        "verdict": verdict_words(judgement),
        "why": judgement.why,
        "of": text.clean(sample.of, 200),
    }


def hours_of(words: Sequence[str]) -> float | None:
    """Return the node-hours that a command takes at most; None where nobody has computed it."""
    tests = costs().get(" ".join(words))
    return None if tests is None else sum(tests.values())


def asked_of(finding: Finding) -> Target:
    """Return a target as it was asked: of another machine without the paper's size."""
    comparison = finding.target.comparison
    if comparison is None or not finding.judgement.by_sign:
        return finding.target
    return Target(comparison=comparison._replace(at=""))


def commands_of(parts: Iterable[tuple[str, Claim]]) -> list[Command]:
    """List what redoes claims, which stand beside the names of their figures, the cheapest first.

    Machines that are gone run nothing.
    """
    found: dict[str, tuple[float | None, dict[str, None]]] = {}
    for place, claim in parts:
        for words in () if claim.retired else claim.commands:
            found.setdefault(shlex.join(words), (hours_of(words), {}))[1][place] = None
    listed = [Command(words, hours, tuple(places)) for words, (hours, places) in found.items()]
    return sorted(listed, key=lambda one: (one.node_hours is None, one.node_hours, one.words))


def waiting_of(judged: Iterable[JudgedFigure]) -> list[tuple[str, Claim]]:
    """List the claims of which a run on the paper's machine would tell more, with the place of each."""
    return [
        (f"{one.figure.paper} {one.figure.where}", part.claim)
        for one in judged
        for part in one.parts
        if not part.claim.status and any(_is_open(finding.judgement) for finding in part.findings)
    ]


def _is_open(judgement: Judgement) -> bool:
    return judgement.by_sign or judgement.verdict not in GOOD + BAD


def figure_table(name: str, judged: Sequence[JudgedFigure]) -> Table:
    """Make the table of a paper's figures, each with its verdict and what the rest of it waits for."""
    rows = [
        (one.figure.where, one.figure.says, *standing(one), waits(one), remarks(one), hours_left(one)) for one in judged
    ]
    keys = ["where", "says", "verdict", "how_far", "waits", "note", "node_hours"]
    data = pd.DataFrame(rows, columns=keys)
    data["node_hours"] = pd.to_numeric(data["node_hours"])
    columns = columns_of("where", _verdict_column(), "how_far says waits note node_hours")
    return Table("Figures", columns, data, f"{name}-figures")


def hours_left(judged: JudgedFigure) -> float | None:
    """Return the node-hours that redo a figure on the paper's machine; None where it is gone, or none are known."""
    return None if all(part.claim.retired for part in judged.parts) else judged.figure.node_hours


def standing(judged: JudgedFigure) -> tuple[str, str]:
    """Write a figure's verdict, and how many of its numbers and comparisons have one."""
    of = judged.overall
    words = BY_SIGN.format(of.verdict) if judged.by_sign and of.verdict in GOOD + BAD else of.verdict
    return words, f"{of.judged} of {of.targets}" if of.targets else ""


def heading(judged: JudgedFigure) -> str:
    """Write a figure's verdict, with how much it is of where it leaves out what nothing here can judge.

    An open one is of the whole figure.
    """
    words, how_far = standing(judged)
    return f"{words}, {how_far}" if judged.overall.left_out and judged.overall.verdict in GOOD + BAD else words


def counts(judged: Iterable[JudgedFigure]) -> dict[str, int]:
    """Count the figures of each verdict that there is, verdicts by who is ahead apart, the best first."""
    found = Counter(standing(one)[0] for one in judged)
    order = [words for verdict in VERDICTS for words in (verdict, BY_SIGN.format(verdict))]
    return {words: found[words] for words in order if found[words]}


def waits(judged: JudgedFigure, but: Container[str] = ()) -> str:
    """Write why what a figure claims isn't judged yet, each reason once, without those that are said already. Claims
    that weren't run are named where others of the figure were.
    """
    waiting = [part for part in judged.parts if not part.measured]
    found = dict.fromkeys(part.why or NOT_RUN for part in waiting)
    names = [part.claim.name for part in waiting if judged.measured and part.claim.name and not part.why]
    words = {NOT_RUN: f"{', '.join(names)} ({NOT_RUN})" if names else NOT_RUN}
    return "; ".join(words.get(why, why) for why in found if why not in but)


def remarks(judged: JudgedFigure) -> str:
    """Write the notes of a figure's claims, each once after the names of the claims that have it."""
    found: dict[str, list[str]] = {}
    for part in judged.parts:
        if part.claim.note:
            found.setdefault(part.claim.note, []).append(part.claim.name)
    return "; ".join(": ".join(filter(None, (", ".join(names), note))) for note, names in found.items())


def decided_by(judged: JudgedFigure) -> str:
    """Write how much of a figure has a verdict, the machines that gave one, those that can't tell some of it, and why
    nothing here could judge what the verdict leaves out.
    """
    deciding = sorted({name for one in judged.answers for name in one.by})
    waiting = sorted({name for one in judged.answers for name in one.open})
    said = f"{standing(judged)[1]} told"
    said += f" by {' and '.join(map(_machine, deciding))}" if deciding else ""
    said += f"; open on {' and '.join(map(_machine, waiting))}" if waiting else ""
    of = judged.overall
    rest = "the rest" if of.judged + of.left_out == of.targets else f"{of.left_out} of {of.targets}"
    said += f"; {rest}: {' and '.join(of.obstacles)}" if of.left_out else ""
    others = dict.fromkeys(part.why for part in judged.parts if part.why and part.measured)
    return "; ".join([said, *others])


def example_of(judged: JudgedFigure) -> str:
    """Write what is published and measured of the first of a figure's targets that has its verdict, or else of any."""
    measured = [(part, target) for part in judged.parts for target in part.answers if _deciding(part, target)]
    verdict = judged.overall.verdict
    alike = [one for one in measured if one[0].answers[one[1]].judgement.verdict == verdict]
    if not measured:
        return ""
    part, target = (alike or measured)[0]
    finding = _deciding(part, target)
    assert finding is not None
    row = _row(part, finding)
    words = "{said} by {measured} on {machine}" if target.comparison else "published {said}, {measured} on {machine}"
    of = f" ({row['of']})" if part.claim.anywhere else ""
    return (f"{row['part']}: " if row["part"] else "") + words.format_map(row) + of


def _deciding(part: Judged, target: Target) -> Finding | None:
    """Return the finding of a target on the first machine that decided it, or that was open where none did."""
    answer = part.answers[target]
    machines = answer.by or answer.open
    return next((one for one in part.findings if one.target == target and one.machine in machines[:1]), None)


def _machine(name: str) -> str:
    return text.clean(name, 60)


def measured_table(name: str, judged: Sequence[JudgedFigure]) -> Table | None:
    """Make the table of what was measured beside what the paper says; None where nothing was."""
    rows = [_row(part, one) | {"where": figure.figure.where} for figure, part, one in _measured(judged)]
    if not rows:
        return None
    data = pd.DataFrame(rows, columns=COLUMNS)
    columns = columns_of("where part", _verdict_column(), "machine said measured off jobs why of", missing={"why": ""})
    return Table("Measured beside published", columns, data, f"{name}-measured")


def _measured(judged: Iterable[JudgedFigure]) -> list[tuple[JudgedFigure, Judged, Finding]]:
    return [(one, part, finding) for one in judged for part in one.parts for finding in part.findings if finding.sample]


def _verdict_column() -> Column:
    (column,) = columns_of("verdict", verdict="Verdict")
    good, bad = (frozenset([*words, *map(BY_SIGN.format, words)]) for words in (GOOD, BAD))
    return replace(column, good=good, bad=bad)


def command_table(judged: Sequence[JudgedFigure]) -> Table:
    """Make the table of what to run for the claims that wait."""
    rows = [(one.words, one.node_hours, ", ".join(one.places)) for one in commands_of(waiting_of(judged))]
    data = pd.DataFrame(rows, columns=["command", "node_hours", "places"])
    data["node_hours"] = pd.to_numeric(data["node_hours"])
    return Table("What to run", columns_of("command node_hours places"), data, "commands", NOTES["redo"])


def as_text(judged: Sequence[JudgedFigure]) -> str:
    """Write the verdicts for a terminal: counts, what was measured beside what is published, the rest, what to run."""
    said = ", ".join(f"{number} {words}" for words, number in counts(judged).items()) or "nothing asked for"
    head = f"{text.plural(len(judged), 'figure')}: {said}."
    parts = [head, *(_block(one) for one in judged if _measured([one])), _rest(judged), _to_run(judged)]
    return "\n\n".join(filter(None, parts))


def _block(judged: JudgedFigure) -> str:
    words, _ = standing(judged)
    waiting = waits(judged, judged.overall.obstacles)
    rows = [
        [row["part"], row["said"], row["measured"], str(row["jobs"]), row["machine"], row["verdict"], row["off"]]
        for row in (_row(part, finding) for _, part, finding in _measured([judged]))
    ]
    heads = ["Claim", "Published", "Measured", "Jobs", "Machine", "Verdict", "Off by"]
    title = f"{judged.figure.paper} {judged.figure.where}: {words}, {decided_by(judged)}. {judged.figure.says}"
    table = tabulate(rows, heads, "plain", disable_numparse=True)
    more = {"Not judged": waiting, "Remarks": remarks(judged)}
    said = [*_settings(judged), *(f"{head}: {words}." for head, words in more.items() if words)]
    return "\n".join([title, table, *said])


def _settings(judged: JudgedFigure) -> list[str]:
    """Write what was measured of claims that any machine and network answers, and why it can't be told."""
    said = []
    for _, part, finding in _measured([judged]):
        if part.claim.anywhere:
            row = _row(part, finding)
            why = f" ({row['why']})" if row["why"] else ""
            said.append(": ".join(filter(None, (str(row["part"]), f"{row['of']}{why}."))))
    return said


def _rest(judged: Sequence[JudgedFigure]) -> str:
    waiting = {f"{one.figure.paper} {one.figure.where}": one for one in judged if not _measured([one])}
    if not waiting:
        return ""
    rows = [[place, one.overall.verdict, waits(one)] for place, one in waiting.items()]
    table = tabulate(rows, ["Figure", "Verdict", "Waits for"], "plain", disable_numparse=True)
    notes = [f"{place}: {words}." for place, one in waiting.items() if (words := remarks(one))]
    return "\n".join([table, *(["", "Remarks", *notes] if notes else [])])


def _to_run(judged: Sequence[JudgedFigure]) -> str:
    rows = [
        [one.words, "not known" if one.node_hours is None else f"{one.node_hours:g}", ", ".join(one.places)]
        for one in commands_of(waiting_of(judged))
    ]
    return tabulate(rows, ["To run", "Node-hours at most", "For"], "plain", disable_numparse=True) if rows else ""
