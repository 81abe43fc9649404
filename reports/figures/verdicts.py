"""Each judged figure of a paper as a picture: published values, their tolerances, and what each machine measured."""

import math
from collections import defaultdict
from functools import cache

import pandas as pd

from engine.published import UNITS
from engine.published.claims import Claim, Target
from engine.published.claims.tolerance import band, value_of
from engine.result.judges.reproduction import NOBODY_AHEAD, Verdict
from reports import text
from reports.figures.reproduction import asked_of, off_text, point_text, published_text
from reports.frames.reproduction import Finding, Judged, JudgedFigure
from reports.frames.reproduction.sources import figure_of
from reports.page import Figure
from reports.plots.verdicts import Panel, Spot, Track, verdicts
from reports.words import NOTES

SIGNS: dict[Verdict, tuple[str, str]] = {
    "reproduces": ("\u2713", "green"),
    "better": ("\u2191", "blue"),
    "differs": ("\u2717", "red"),
    "can't tell": ("?", "gold"),
    "not run here": ("\u25cb", "muted"),
    "machine retired": ("\u2013", "muted"),
}
"""Sign and colour of each verdict, which tell nothing that its words don't."""
MOST_TRACKS = 24
"""Most targets of one picture; its CSV has all of them."""
CSV = ("claim", "of", "published", "published_low", "published_high", "tolerated_low", "tolerated_high")


def picture(judged: JudgedFigure, name: str) -> Figure | None:
    """Draw a figure of a paper, once for all reports where nothing of it was measured; None of one without numbers."""
    return _draw(judged, name) if judged.measured else _unmeasured(judged, name)


@cache
def _unmeasured(judged: JudgedFigure, name: str) -> Figure | None:
    return _draw(judged, name)


def _draw(judged: JudgedFigure, name: str) -> Figure | None:
    """Draw a figure of a paper with what was measured of it, or where nothing was, its published numbers alone; None of
    a figure that has neither.
    """
    measured = [part for part in judged.parts if part.measured]
    every = [(part, *one) for part in measured or judged.parts for one in _by_target(part).items()]
    tracks = [one for one in every if measured or one[1].readings]
    if not tracks:
        return None
    panels = defaultdict[str, list[tuple[Judged, Target, list[Finding]]]](list)
    for one in tracks[:MOST_TRACKS]:
        panels[_caption(one[0].claim, one[1])].append(one)
    drawn = [
        Panel(caption, [_track(*one) for one in some], _level(some[0][0].claim)) for caption, some in panels.items()
    ]
    where = judged.figure.where
    more = len(tracks) - MOST_TRACKS
    caption = NOTES["verdict_plot" if measured else "published_plot"]
    caption += f" {more} more targets are in the CSV." if more > 0 else ""
    rows = [row for one in tracks for row in _rows(*one)]
    told = "; ".join(f"{row['claim']} {row['of']} on {row['machine']}: {row['verdict']}" for row in rows[:MOST_TRACKS])
    kinds = "published and measured" if measured else "published"
    description = f"{kinds.capitalize()} values of {judged.figure.paper} {where}. {told}."
    return Figure(f"{where}, {kinds}", caption, verdicts(drawn), pd.DataFrame(rows), name, description)


def sign(verdict: Verdict) -> str:
    """Return the sign of a verdict."""
    return SIGNS[verdict][0]


def _by_target(part: Judged) -> dict[Target, list[Finding]]:
    found = defaultdict[Target, list[Finding]](list)
    for one in part.findings:
        found[one.target].append(one)
    return found


def _caption(claim: Claim, target: Target) -> str:
    words = _without_unit(figure_of(claim, target))
    if target.comparison is not None:
        return f"lead by {words}, %"
    if claim.kind == "share":
        return f"{words}, {f'of {claim.out_of}' if claim.out_of else '%'}"
    return f"{words}, {'times' if claim.kind == 'ratio' else target.readings[0].unit or 'count'}"


def _without_unit(figure: str) -> str:
    """Write the name of a time without its unit: exposed time for exposed s."""
    return f"{figure.removesuffix(' s').removesuffix('time')} time".strip() if figure.endswith(" s") else figure


def _unit(claim: Claim, target: Target) -> float:
    """Return the unit of a target's scale, in the unit of Measured."""
    if target.comparison is not None:
        return 0.01
    if claim.kind == "share":
        return 1 / claim.out_of if claim.out_of else 0.01
    return 1.0 if claim.kind == "ratio" else UNITS[target.readings[0].unit]


def _level(claim: Claim) -> float:
    if claim.kind == "order" or claim.gain:
        return 0.0
    return NOBODY_AHEAD["ratio"] if claim.kind == "ratio" else math.nan


def _track(part: Judged, target: Target, findings: list[Finding]) -> Track:
    claim, unit = part.claim, _unit(part.claim, target)
    spots = [_spot(claim, one, unit) for one in findings]
    several = len(claim.targets) > 1
    label = claim.name or (point_text(target) if several else "") or figure_of(claim, target)
    if target.comparison is not None:
        return Track(label, published_text(asked_of(findings[0])), spots, low=0.0, high=math.inf)
    if claim.name and several and not findings[0].judgement.by_sign:
        label = f"{claim.name}: {point_text(target)}"
    reading = part.answers[target].judgement.reading
    order = [reading, *(place for place in range(len(target.readings)) if place != reading)]
    ends = [value_of(claim.kind, target.readings[place], claim.out_of) for place in order]
    low, high = band(claim.kind, target.readings[reading], claim.out_of)
    published = [(bottom / unit, top / unit) for bottom, top in ends]
    return Track(label, published_text(target, reading), spots, published, low / unit, high / unit)


def _spot(claim: Claim, finding: Finding, unit: float) -> Spot:
    judgement, sample = finding.judgement, finding.sample
    mark, colour = SIGNS[judgement.verdict]
    words = f"{mark} {judgement.verdict}"
    if sample is None:
        return Spot(claim.system if claim.system != "any" else "", words, colour)
    if judgement.verdict == "differs" and not judgement.by_sign:
        words += f" {off_text(claim, judgement)}"
    low, high = (end / unit for end in sample.interval)
    return Spot(finding.machine, words, colour, sample.value / unit, low, high, hollow=judgement.by_sign)


def _rows(part: Judged, target: Target, findings: list[Finding]) -> list[dict[str, object]]:
    """List the values of a target's line in the unit of its scale, a row a machine."""
    track, caption = _track(part, target, findings), _caption(part.claim, target)
    (low, high), *_ = track.published or [(math.nan, math.nan)]
    tolerated = (track.low, track.high) if target.comparison is None else (0.0, math.inf)
    ends = (math.nan if end == -math.inf else end for end in tolerated)
    known = dict(zip(CSV, (part.claim.name, point_text(target), track.said, low, high, *ends), strict=True))
    return [
        known
        | {"scale": caption, "machine": text.clean(spot.machine, 60), "value": spot.value}
        | {"low": spot.low, "high": spot.high, "verdict": one.judgement.verdict, "by_sign": spot.hollow}
        for spot, one in zip(track.spots, findings, strict=True)
    ]
