"""Verdicts on published claims: does what was measured here reproduce what a paper says? No torch.

A measurement is an interval over jobs. The whole interval has to lie inside the tolerance of the claim's kind to
reproduce it (engine/published/claims/tolerance.py), beyond it on the better side to be better, and beyond it on the
other side to differ; anything else can't be told. On another machine than the paper's, numbers mean nothing: only who
is ahead is judged there, and what depends on no machine.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from engine.published import Number
from engine.published.claims import ANY, Claim, Target
from engine.published.claims.tolerance import TOLERANCES, band, value_of
from engine.result import gate
from engine.result.gate import Interval
from engine.result.judges.peers import FEWEST_JOBS

Verdict = Literal["reproduces", "better", "differs", "can't tell", "not run here", "machine retired"]
BEST_FIRST: tuple[Verdict, ...] = ("reproduces", "better", "can't tell", "differs")
"""Verdicts on a measurement by several readings: a paper that contradicts itself is held to the nearest of them."""
GOOD: tuple[Verdict, ...] = ("reproduces", "better")
GONE = "numbers of a machine that is gone"
"""Obstacle of a target that no other machine can answer."""
TELLING: tuple[Verdict, ...] = (*GOOD, "differs")
NO_WORSE = "it reproduces or is better: more jobs tell which"
ONE_END = "only one end of the interval is known"
NOBODY_AHEAD = {"share": 0.0, "ratio": 1.0}
"""Value of a gain, or of a ratio, at which neither side is ahead."""


class Measured(NamedTuple):
    """Measurement of one target, of the model and devices that it names: its interval over jobs, and where it ran.

    The unit is SI of a number, a fraction of a share, the number of times of a ratio, and of an order by how much the
    one that is said to be ahead is: positive where it is.
    """

    interval: Interval
    jobs: int
    machine: str
    """Name of the file in systems/."""
    lack: str = ""
    """Measurements without which it can't tell, such as further points of a range; "" where it has all."""
    fault: str = ""
    """Reason why it reproduces nothing, though its interval may lie within the tolerance."""


class Judgement(NamedTuple):
    """Verdict on one target, and what it rests on."""

    verdict: Verdict
    off: float = 0.0
    """Distance of the nearest end of the interval from the published value, where it differs or is better: a part of
    the value of numbers and ratios, points (0.01 is one of per cent) of shares, the lead of orders. Negative is below.
    """
    why: str = ""
    by_sign: bool = False
    """Whether only who is ahead was judged, or waits to be, as the rest ran on another machine."""
    reading: int = 0
    """Which of the paper's readings it is by, the first as printed at the place."""
    digest: str = ""
    """Digest of the claim as it was when it was judged."""
    tolerance: float = 0.0
    """Tolerance of the claim's kind when it was judged."""
    obstacle: str = ""
    """Reason why no run of what is here could judge it; "" where one could, or did."""


class Overall(NamedTuple):
    """Verdict on all targets of a claim or of a figure."""

    verdict: Verdict
    judged: int
    """Targets with a measurement that tells."""
    targets: int
    left_out: int = 0
    """Targets of which the verdict isn't, as nothing here could judge them; none where nothing was judged."""
    obstacles: tuple[str, ...] = ()
    """Reasons for that, each once."""


def judge(claim: Claim, target: Target, measured: Measured | None) -> Judgement:
    """Judge one target of a claim; without a measurement, say why there is none.

    Raises ValueError for an interval that isn't one, or of no job.
    """
    if measured is None:
        return _stamped(claim, _missing(claim, target))
    low, high = measured.interval
    if low > high or measured.jobs < 1:
        raise ValueError(
            f"A measurement is an interval of one job or more, not {low:g} to {high:g} of {measured.jobs}."
        )
    elsewhere = measured.machine != claim.machine and claim.system != ANY and not claim.anywhere
    if elsewhere and not says_who_is_ahead(claim, target):
        return _stamped(claim, _missing(claim, target)._replace(why=f"on {measured.machine} it means nothing"))
    if measured.lack:
        return _stamped(claim, Judgement("can't tell", why=measured.lack))
    if measured.jobs < FEWEST_JOBS:
        return _stamped(claim, Judgement("can't tell", why=f"of {measured.jobs} job, {FEWEST_JOBS} or more tell"))
    found = _by_interval(claim, target, measured.interval, elsewhere=elsewhere)
    if measured.fault and found.verdict in GOOD:
        found = found._replace(verdict="can't tell", off=0.0, why=measured.fault)
    return _stamped(claim, found)


def by_reading(claim: Claim, target: Target, measured: Measured) -> tuple[Judgement, ...]:
    """Judge a target by each reading alone, in the order of its readings."""
    return tuple(
        judge(claim, Target(readings=(number,)), measured)._replace(reading=place)
        for place, number in enumerate(target.readings)
    )


def overall(judgements: Sequence[Judgement]) -> Overall:
    """Judge all targets together: they differ if one does, and reproduce if every one does, or is better.

    What can't be told of one, or wasn't run while others were, leaves the whole open. What nothing here can judge
    doesn't, and is left out once another target tells: the verdict is of those that were judged. Nothing measured at
    all is not run here, or the machine is retired.
    """
    verdicts = [judgement.verdict for judgement in judgements]
    told = sum(verdict in TELLING for verdict in verdicts)
    obstacles = [one.obstacle for one in judgements if one.obstacle] if told else []
    within = {one.verdict for one in judgements if not (told and one.obstacle)}
    together: Verdict = "can't tell"
    if "differs" in within:
        together = "differs"
    elif within and within <= set(GOOD):
        together = "better" if within == {"better"} else "reproduces"
    elif not told and "can't tell" not in within:
        together = "machine retired" if within == {"machine retired"} else "not run here"
    return Overall(together, told, len(verdicts), len(obstacles), tuple(dict.fromkeys(obstacles)))


def outdated(claim: Claim, kept: Judgement) -> str | None:
    """Say why a verdict that was kept holds no more; None if the claim and its tolerance are as they were."""
    same_tolerance = math.isclose(kept.tolerance, claim.tolerance)
    if kept.digest == claim.digest and same_tolerance:
        return None
    if not same_tolerance:
        return (
            f"{claim.paper} {claim.place} was judged with a tolerance of {kept.tolerance:g}, which is "
            f"{claim.tolerance:g} now: judge it again."
        )
    return f"{claim.paper} {claim.place} is not the claim that was judged: judge it again."


def _stamped(claim: Claim, judgement: Judgement) -> Judgement:
    return judgement._replace(digest=claim.digest, tolerance=claim.tolerance)


def _missing(claim: Claim, target: Target) -> Judgement:
    """Say why a target isn't judged, and whether nothing here could: a machine that is gone leaves only who is ahead,
    which another machine can tell.
    """
    gone = claim.retired and not claim.anywhere
    obstacle = claim.status or (GONE if gone and not says_who_is_ahead(claim, target) else "")
    return Judgement("machine retired" if gone else "not run here", why=claim.status, obstacle=obstacle)


def says_who_is_ahead(claim: Claim, target: Target) -> bool:
    """Return whether a target has a sign that another machine may have too: an order, a gain, a ratio other than 1."""
    if target.comparison is not None:
        return True
    return (claim.gain or claim.kind == "ratio") and _lead(claim, target.readings[0]) != 0


def _lead(claim: Claim, number: Number) -> int:
    """Return 1 if the published value is above the one at which nobody is ahead, -1 below, 0 on or around it."""
    even = NOBODY_AHEAD[claim.kind]
    low, high = value_of(claim.kind, number, claim.out_of)
    return 1 if low > even else -1 if high < even else 0


def _by_interval(claim: Claim, target: Target, interval: Interval, *, elsewhere: bool) -> Judgement:
    """Judge by the interval over enough jobs. elsewhere: on another machine, by who is ahead alone."""
    if target.comparison is not None:
        return _by_lead(interval)._replace(by_sign=elsewhere)
    if elsewhere:
        ahead = _lead(claim, target.readings[0])
        lead = Interval(*sorted(ahead * (end - NOBODY_AHEAD[claim.kind]) for end in interval))
        return _by_lead(lead)._replace(by_sign=True)
    found = [_by_band(claim, number, interval)._replace(reading=place) for place, number in enumerate(target.readings)]
    return min(found, key=lambda judgement: (BEST_FIRST.index(judgement.verdict), judgement.reading))


def _by_lead(lead: Interval) -> Judgement:
    """Judge by the interval of a lead: all of it above 0 is as the paper says."""
    if lead.low > 0:
        return Judgement("reproduces")
    if lead.high < 0:
        return Judgement("differs", off=lead.high)
    return Judgement("can't tell", why="the interval contains a tie")


def _by_band(claim: Claim, number: Number, measured: Interval) -> Judgement:
    """Judge by the tolerance around one published number."""
    low, high = band(claim.kind, number, claim.out_of)
    if gate.within(measured, low, high) == "pass":
        return Judgement("reproduces")
    above, below = measured.low > high, measured.high < low
    if not (above or below):
        return Judgement("can't tell", why=_why_open(claim, measured, low, high))
    bottom, top = value_of(claim.kind, number, claim.out_of)
    off = measured.low - top if above else measured.high - bottom
    if TOLERANCES[claim.kind].of_the_value:
        off /= abs(top if above else bottom)
    side = "higher" if above else "lower"
    return Judgement("better" if claim.better == side else "differs", off=off)


def _why_open(claim: Claim, measured: Interval, low: float, high: float) -> str:
    """Say why an interval leaves open whether it lies in the tolerance from low to high."""
    known = [end for end in measured if math.isfinite(end)]
    if not known or measured == gate.NOTHING_KNOWN:
        return "nothing is known of the interval"
    no_worse = measured.low >= low if claim.better == "higher" else measured.high <= high
    if no_worse and claim.better != "neither":
        return NO_WORSE if len(known) == 2 else f"it reproduces or is better: {ONE_END}"
    return "the interval lies on an end of the tolerance" if len(known) == 2 else ONE_END
