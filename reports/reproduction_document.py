"""More of the document of `par4d reproduce`: verdicts over machines, conditions of runs, a site's own thresholds."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from engine.published import UNITS
from engine.published.claims import Claim, Target
from engine.published.claims.tolerance import band
from reports.figures.reproduction import point_text, published_text
from reports.frames.acceptance import Checked
from reports.frames.frame import Frames
from reports.frames.reproduction import Judged, JudgedFigure
from reports.frames.reproduction.conditions import compared

FailOn = Literal["differs", "undecided"]
BASE_UNITS = {
    **{"s": "seconds", "days": "seconds", "months": "seconds", "years": "seconds"},
    **{"Pflop/s": "flops_per_second", "Tflop/s": "flops_per_second", "images/s": "images_per_second"},
    "tokens/s": "tokens_per_second",
    **{"bytes": "bytes", "GB": "bytes", "GB/s": "bytes_per_second"},
    **{"tokens": "tokens", "million tokens": "tokens", "billion tokens": "tokens"},
}
"""SI units of published ones, in words; whatever is missing is a bare number."""
RATIO = "ratio"


def unit_of(claim: Claim, target: Target) -> str:
    """Return the unit of a target's measurement in words; ratio of shares, ratios and leads."""
    if claim.kind != "number":
        return RATIO
    unit = target.readings[0].unit
    assert unit in UNITS
    return BASE_UNITS.get(unit, "count")


def enriched(
    document: dict[str, Any], frames: Frames, judged: Sequence[JudgedFigure], checked: Iterable[Checked]
) -> dict[str, Any]:
    """Return the document of judged figures with their answers, tolerances and conditions, and thresholds beside."""
    figures = [
        of
        | {"claims": [_of_claim(claim, part) for claim, part in zip(of["claims"], one.parts, strict=True)]}
        | {"conditions": _conditions(frames, one)}
        for of, one in zip(document["figures"], judged, strict=True)
    ]
    return document | {"figures": figures, "thresholds": [of_threshold(one) for one in checked]}


def _of_claim(claim: Mapping[str, Any], part: Judged) -> dict[str, Any]:
    """Add the answers to a claim's document, and to each of its findings the place of its target among them."""
    answers, places = [], list(part.answers)
    for target, answer in part.answers.items():
        judgement = answer.judgement
        said = published_text(target, judgement.reading)
        of: dict[str, Any] = {"of": point_text(target), "published": said}
        by_size = target.comparison is not None or not judgement.by_sign  # else only the side counts
        ends = tolerated(part.claim, target, judgement.reading) if by_size else (math.nan, math.nan)
        of |= {"unit": unit_of(part.claim, target), "tolerated": [_finite(end) for end in ends]}
        of |= {"verdict": judgement.verdict, "by_sign": judgement.by_sign}
        answers.append(of | {"by": list(answer.by), "open": list(answer.open)})
    pairs = zip(claim["findings"], part.findings, strict=True)
    findings = [said | {"target": places.index(finding.target)} for said, finding in pairs]
    return {**claim, "findings": findings, "answers": answers}


def tolerated(claim: Claim, target: Target, reading: int) -> tuple[float, float]:
    """Return the ends of the values that reproduce a target, in the unit of Measured."""
    if target.comparison is not None:
        return 0.0, math.inf
    return band(claim.kind, target.readings[reading], claim.out_of)


def _conditions(frames: Frames, judged: JudgedFigure) -> list[dict[str, Any]]:
    machines = dict.fromkeys(one.machine for part in judged.parts for one in part.findings if one.sample)
    return [
        {"paper_system": one.conditions.system, "where": one.conditions.where, "machine": one.machine}
        | {"facts": [fact._asdict() for fact in one.facts]}
        for one in compared(frames, judged.figure, machines)
    ]


def of_threshold(checked: Checked) -> dict[str, Any]:
    """Return a threshold with its outcome as JSON has it, its limit and what was measured in SI units."""
    threshold, sample = checked.threshold, checked.sample
    measured = None
    if sample is not None:
        ends = {"value": sample.value, **sample.interval._asdict()}
        measured = {name: _finite(value) for name, value in ends.items()} | {"jobs": sample.jobs, "of": sample.of}
    return {
        **{"system": checked.system, "suite": threshold.suite, "point": threshold.point, "metric": threshold.metric},
        **{"side": threshold.side, "limit": threshold.limit, "text": threshold.text, "source": threshold.source},
        **{"outcome": checked.outcome, "why": checked.accepted.why, "measured": measured},
    }


def fails(document: Mapping[str, Any], on: Iterable[FailOn]) -> bool:
    """Return whether a figure of a document that was judged has a verdict on which a command is to fail.

    differs: one differs, or a threshold fails. undecided: one that was measured can't be told, or a threshold.
    """
    words = {"differs": {"differs", "fail"}, "undecided": {"can't tell", "undecided"}}
    wanted = {word for one in on for word in words[one]}
    found = {figure.get("verdict", "") for figure in document["figures"]}
    return not wanted.isdisjoint(found | {one["outcome"] for one in document.get("thresholds", ())})


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
