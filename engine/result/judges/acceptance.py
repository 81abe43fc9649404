"""Judgement of a site's own thresholds, by the same gates as published claims. No torch."""

from typing import NamedTuple

from engine.result import gate
from engine.result.gate import Interval
from engine.result.judges.peers import FEWEST_JOBS


class Accepted(NamedTuple):
    """Outcome of one threshold."""

    outcome: gate.Outcome
    why: str = ""
    """Reason why it is undecided."""


def accept(
    interval: Interval | None, jobs: int, *, at_least: float | None = None, at_most: float | None = None
) -> Accepted:
    """Judge an interval over jobs by a limit: pass where all of it keeps the limit, fail where none of it does.

    Raises ValueError unless one limit is given.
    """
    if (at_least is None) == (at_most is None):
        raise ValueError("A threshold has one limit, at_least or at_most.")
    if interval is None or jobs < 1:
        return Accepted("undecided", "not run here")
    if jobs < FEWEST_JOBS:
        return Accepted("undecided", f"of {jobs} job, {FEWEST_JOBS} or more tell")
    if at_least is not None:
        outcome = gate.at_least(interval, at_least)
    else:
        assert at_most is not None
        outcome = gate.at_most(interval, at_most)
    return Accepted(outcome, "the interval contains the limit" if outcome == "undecided" else "")
