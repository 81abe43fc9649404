"""Verdicts of the first page: papers by their figures, each figure leading to its plot or to what it takes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine import yaml_text
from engine.published.claims import ANY
from reports import text
from reports.figures.reproduction import counts, decided_by, example_of, heading, hours_left
from reports.figures.verdicts import SIGNS
from reports.frames.reproduction import VERDICTS, JudgedFigure
from reports.page import PaperRows, VerdictRow, Verdicts

PAGE = "reproduction.html"
NOT_BUILT = "not built yet"
"""Words for what no suite here runs."""
OBSTACLES = {"not built": "", "comes with another study": "it comes with another study"}


@dataclass(frozen=True, slots=True)
class Front:
    """Verdicts of the first page: how many figures have each, and the figures of each paper."""

    tally: tuple[VerdictRow, ...]
    verdicts: Verdicts


def front(judged: Sequence[JudgedFigure]) -> Front:
    """List the papers with their figures; measured ones first."""
    known = {paper["name"]: paper for paper in _papers()}
    rows = [_paper(known.get(name, {"name": name, "title": name}), some) for name, some in by_paper(judged).items()]
    return Front(_tally(judged), Verdicts(rows))


def by_paper(judged: Sequence[JudgedFigure]) -> dict[str, list[JudgedFigure]]:
    """Sort figures by paper, in the order of papers.yaml; trainers of which it says nothing come last."""
    found: dict[str, list[JudgedFigure]] = {paper["name"]: [] for paper in _papers()}
    for one in judged:
        found.setdefault(one.figure.paper, []).append(one)
    return found


def _papers() -> list[dict[str, str]]:
    return list(yaml_text.read(Path(__file__).parents[1] / "papers.yaml"))


def _tally(judged: Sequence[JudgedFigure]) -> tuple[VerdictRow, ...]:
    found = Counter(one.overall.verdict for one in judged)
    return tuple(VerdictRow("", *SIGNS[verdict], verdict, f"{found[verdict]}") for verdict in VERDICTS)


def anchor_of(judged: JudgedFigure) -> str:
    """Return the place of a figure in the page of verdicts."""
    return f"{judged.figure.paper}-{text.slug(judged.figure.where)}"


def has_numbers(judged: JudgedFigure) -> bool:
    """Return whether a figure has a plot: of what was measured, or of published numbers alone."""
    return judged.measured or any(target.readings for part in judged.parts for target in part.answers)


def _paper(paper: dict[str, str], judged: Sequence[JudgedFigure]) -> PaperRows:
    name, title = paper["name"], paper["title"]
    if other := paper.get("same_as"):
        return PaperRows(name, title, "", note=f"Same text, figures and numbers as {other}.")
    said = ", ".join(f"{number} {words}" for words, number in counts(judged).items())
    measured = tuple(_measured(one) for one in judged if one.measured)
    return PaperRows(name, title, said, measured, tuple(_waiting(one) for one in judged if not one.measured))


def _measured(judged: JudgedFigure) -> VerdictRow:
    words = heading(judged)
    sign, colour = SIGNS[judged.overall.verdict]
    figure, address = judged.figure, f"{PAGE}#{anchor_of(judged)}"
    return VerdictRow(figure.where, sign, colour, words, figure.says, example_of(judged), decided_by(judged), address)


def _waiting(judged: JudgedFigure) -> VerdictRow:
    """Describe a figure of which nothing was measured: why, in a few words."""
    verdict = judged.overall.verdict
    sign, colour = SIGNS[verdict]
    address = f"{PAGE}#{anchor_of(judged) if has_numbers(judged) else f'paper-{judged.figure.paper}'}"
    reasons = dict.fromkeys(part.claim.status for part in judged.parts)
    machines = dict.fromkeys(part.claim.system for part in judged.parts if part.claim.system != ANY)
    words, why = str(verdict), ""
    if verdict == "machine retired":
        why = " and ".join(machines)
    elif reasons and set(reasons) <= set(OBSTACLES):
        words, why = NOT_BUILT, ", ".join(filter(None, (OBSTACLES[reason] for reason in reasons)))
    elif set(reasons) - {""} and "" not in reasons:
        why = ", ".join(reasons)
    elif all(part.claim.retired for part in judged.parts):
        why = f"on any machine, as {' and '.join(machines)} is retired"
    elif (hours := hours_left(judged)) is not None:
        why = f"{_hours(hours)} node-hours on {' and '.join(machines) or 'any machine'}"
    return VerdictRow(judged.figure.where, sign, colour, words, why, address=address)


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"
