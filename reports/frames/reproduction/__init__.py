"""Verdicts on published claims: what was measured here beside what the papers say (engine/published/claims).

A claim is judged on the paper's machine if it ran there, and else on each other machine where it ran, where only who
is ahead counts; engine/result/judges/machines.py has the rule of several machines. What several places of a paper ask
of another machine is asked of it once, and what the paper answers in two ways, depending on the size, not at all. What
no machine answered leaves the claim open.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from engine.published.claims import ANY, Claim, Figure, Target
from engine.published.claims import figures as figures_of_papers
from engine.result.judges.machines import Answer, over_machines
from engine.result.judges.reproduction import (
    GONE,
    Judgement,
    Measured,
    Overall,
    Verdict,
    judge,
    overall,
    says_who_is_ahead,
)
from reports.frames.frame import Frames
from reports.frames.reproduction.options import left_out
from reports.frames.reproduction.samples import Asked, Evidence, Sample
from reports.frames.reproduction.sources import figure_of, sources_of

VERDICTS: tuple[Verdict, ...] = ("reproduces", "better", "differs", "can't tell", "not run here", "machine retired")
TOLD = frozenset({"reproduces", "better", "differs", "can't tell"})
"""Verdicts on something that was measured."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Verdict on one target on one machine."""

    target: Target
    judgement: Judgement
    sample: Sample | None = None
    machine: str = ""
    """Name of the file in systems/ of the machine that measured it; "" where none did."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Verdicts on a claim."""

    claim: Claim
    findings: tuple[Finding, ...]
    """By machine, in the order of its targets; without a machine where nothing was measured."""
    why: str = ""
    """Reason for which nothing of it was judged, or not all that was measured."""

    @property
    def measured(self) -> bool:
        """Whether anything of it was measured."""
        return any(one.sample for one in self.findings)

    @property
    def answers(self) -> dict[Target, Answer]:
        """Verdict on each target by all machines that measured it."""
        by_target = defaultdict[Target, list[Finding]](list)
        for one in self.findings:
            by_target[one.target].append(one)
        return {target: _answer(self.claim, found) for target, found in by_target.items()}

    @property
    def overall(self) -> Overall:
        return overall([one.judgement for one in self.answers.values()])


def _answer(claim: Claim, findings: Sequence[Finding]) -> Answer:
    """Judge a target by its findings; without a measurement it is what they say."""
    measured = {one.machine: one.judgement for one in findings if one.sample}
    return over_machines(measured, claim.machine) if measured else Answer(findings[0].judgement)


@dataclass(frozen=True, slots=True)
class JudgedFigure:
    """Verdicts on all claims of a figure."""

    figure: Figure
    parts: tuple[Judged, ...]

    @property
    def measured(self) -> bool:
        """Whether anything of it was measured."""
        return any(part.measured for part in self.parts)

    @property
    def overall(self) -> Overall:
        return overall([one.judgement for one in self.answers])

    @property
    def answers(self) -> list[Answer]:
        """Verdict on each target of its claims."""
        return [one for part in self.parts for one in part.answers.values()]

    @property
    def by_sign(self) -> bool:
        """Whether its verdict rests on who is ahead elsewhere: any of it if it reproduces, all that differs if not."""
        told = [one.judgement for one in self.answers if one.judgement.verdict in TOLD]
        differing = [one.by_sign for one in told if one.verdict == "differs"]
        return all(differing) if differing else any(one.by_sign for one in told)


def judge_figures(frames: Frames, figures: Iterable[Figure], machine: str = "") -> list[JudgedFigure]:
    """Judge the claims of each figure. frames: of everything, whose runs have their peaks.

    machine: judge by what that one measured alone, and leave out claims of others that it says nothing of.
    """
    evidence = Evidence(frames, machine)
    judged = [JudgedFigure(one, tuple(judge_claim(evidence, claim) for claim in one.claims)) for one in figures]
    return [one for one in (_of_machine(figure, machine) for figure in judged) if one.parts] if machine else judged


@lru_cache(maxsize=1)
def judge_everything(frames: Frames) -> tuple[JudgedFigure, ...]:
    """Judge every figure of the papers, once for all pages of a report."""
    return tuple(judge_figures(frames, figures_of_papers()))


def _of_machine(judged: JudgedFigure, machine: str) -> JudgedFigure:
    mine = [part for part in judged.parts if machine in (part.claim.machine, *(one.machine for one in part.findings))]
    return JudgedFigure(judged.figure, tuple(mine))


def judge_claim(evidence: Evidence, claim: Claim) -> Judged:
    """Judge a claim by what is there; without anything say why."""
    at_home = _on(evidence, claim, claim.machine) if claim.machine in evidence.machines else []
    others = left_out(evidence, claim) if claim.machine in evidence.machines else ""
    if any(one.sample for one in at_home):
        return Judged(claim, tuple(at_home), others)
    elsewhere = [one for name in evidence.machines if name != claim.machine for one in _on(evidence, claim, name)]
    told = [one for one in elsewhere if one.judgement.verdict in TOLD]
    if told:
        return Judged(claim, (*told, *_unanswered(claim, told)), others)
    nothing = tuple(Finding(target, judge(claim, target, None)) for target in claim.targets)
    measured = dict.fromkeys(one.machine for one in elsewhere if one.sample)
    meaningless = f"measured on {' and '.join(measured)}, where its number means nothing" if measured else ""
    return Judged(claim, nothing, others or claim.status or meaningless or _why(claim))


def _on(evidence: Evidence, claim: Claim, machine: str) -> list[Finding]:
    """Judge each target on a machine; on another than the paper's only those that it answers."""
    home = machine == claim.machine
    found = []
    for target in claim.targets if home else _questions(claim):
        asked = Asked(evidence, claim, target, machine)
        sample = next((one for source in sources_of(claim, target) if (one := source(asked))), None)
        measured = Measured(sample.interval, sample.jobs, machine, sample.lack, sample.fault) if sample else None
        if sample or home:
            found.append(Finding(target, judge(claim, target, measured), sample, machine if sample else ""))
    return found


def _questions(claim: Claim) -> list[Target]:
    """List the targets that another machine can answer, each question once, whatever sizes the paper asks it of."""
    orders = {target.comparison[:2] for target in claim.targets if target.comparison}
    asked = dict[tuple[str, ...], Target]()
    for target in claim.targets:
        if target.comparison is None:
            number = target.readings[0]
            asked.setdefault((number.metric, number.gained, number.framework, number.over, number.what), target)
        elif (target.comparison.behind, target.comparison.ahead) not in orders:
            asked.setdefault(target.comparison[:2], target)
    return list(asked.values())


def _unanswered(claim: Claim, told: Iterable[Finding]) -> list[Finding]:
    """List what another machine could answer and none did: a rival that wasn't run leaves a claim open."""
    answered = {one.target for one in told}
    on_any = claim.anywhere or claim.system == ANY
    return [
        Finding(target, judge(claim, target, None)._replace(by_sign=not on_any))
        for target in _questions(claim)
        if target not in answered and (on_any or says_who_is_ahead(claim, target))
    ]


def _why(claim: Claim) -> str:
    """Say why nothing of a claim was judged: nothing reads it yet, or its machine is gone; "" if it only wasn't run."""
    unread = dict.fromkeys(figure_of(claim, target) for target in claim.targets if not sources_of(claim, target))
    if unread:
        return f"no measurement of {' and '.join(unread)} is read yet"
    if not claim.retired:
        return ""
    by_sign = any(says_who_is_ahead(claim, target) for target in claim.targets)
    return "not measured on another machine" if by_sign else GONE
