"""Verdict on one target of a claim by all machines that measured it. No torch.

The paper's own machine decides wherever it measured anything of the claim, also where that tells nothing yet: more jobs
there would, and who is ahead elsewhere says nothing of a number. Else every other machine has a vote on who is ahead.
One that can't tell takes no other's verdict away: it is named beside it.
"""

from collections.abc import Mapping
from typing import NamedTuple

from engine.result.judges.reproduction import GOOD, Judgement, Verdict

OPEN: Verdict = "can't tell"


class Answer(NamedTuple):
    """Verdict on one target, and the machines that it rests on."""

    judgement: Judgement
    by: tuple[str, ...] = ()
    """Machines that gave the verdict; none where it is open."""
    open: tuple[str, ...] = ()
    """Machines that measured it, and can't tell."""


def over_machines(judged: Mapping[str, Judgement], home: str) -> Answer:
    """Judge one target by its judgements on machines that measured it. home: the paper's own machine.

    home measured it                                   as home says
    one other machine or more differ                   differs
    none differs, one or more reproduce or are better  reproduces; better if all of those that tell are better
    none tells                                         can't tell

    Raises ValueError where no machine measured it.
    """
    if not judged:
        raise ValueError("A verdict over machines takes one that measured something.")
    if home in judged:
        judged = {home: judged[home]}
    differing = {name: one for name, one in judged.items() if one.verdict == "differs"}
    good = {name: one for name, one in judged.items() if one.verdict in GOOD}
    waiting = {name: one for name, one in judged.items() if one.verdict == OPEN}
    deciding = differing or good
    votes = (deciding or waiting).values()
    foremost = max(votes, key=lambda one: (one.verdict == "reproduces", abs(one.off)))
    return Answer(foremost, tuple(deciding), tuple(waiting))
