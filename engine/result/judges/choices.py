"""Judgement of the tuner's choices against PyTorch's own ways, and against the fastest ways. No torch.

A second timing judges, independent of the one that the choice was made by. All ways take turns in each of its rounds,
so that a ratio round by round cancels what disturbs a whole round.
"""

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from engine.result import metrics
from engine.result.gate import Interval, Outcome, at_most, over_rounds
from engine.result.schema.tuning import ModeTime, TunedShape

SLOWEST = 1.03
"""Limit of a choice's ratio to other ways: no two timings are equal."""
LOOKS = 3
"""Looks at a second timing: after its rounds, twice and four times as many (tuning/tune.py)."""


class ChoiceRatio(NamedTuple):
    """Ratio of the choice to other ways: the median over rounds of seconds by seconds, and its interval."""

    ratio: float
    interval: Interval

    @property
    def outcome(self) -> Outcome:
        return at_most(self.interval, SLOWEST)


def by_own(*timed: TunedShape, looks: int = LOOKS) -> ChoiceRatio:
    """Compare all products of a layer as chosen with PyTorch's own ways, which copy nothing and store weights row by
    row.

    timed: the layer's shape, once for each time that it was tuned; their rounds count together. looks: number of looks
    at them in all.
    """
    return _ratio(timed, lambda way: way.own and not way.column_major, looks)


def by_fastest(*timed: TunedShape, looks: int = LOOKS) -> ChoiceRatio:
    """Compare them with the ways that were fastest in the first timing: who wins one by luck does not win the next."""
    return _ratio(timed, lambda way: way.fastest, looks)


def share_that_holds(contests: Sequence[ChoiceRatio]) -> Interval:
    """Return the share of choices that are as fast as the fastest for certain, and the share that may be."""
    failed = sum(contest.outcome == "fail" for contest in contests)
    certain = metrics.choices_that_hold([contest.interval for contest in contests])
    return Interval(certain, 1 - failed / len(contests))


def _ratio(timed: Sequence[TunedShape], others: Callable[[ModeTime], bool], looks: int) -> ChoiceRatio:
    """Return the ratio. Nothing is known of too few rounds, or where some ways have no times, or no rounds."""
    sides = [
        ([way for way in shape.times if way.chosen], [way for way in shape.times if others(way)]) for shape in timed
    ]
    if all(chosen and chosen == against for chosen, against in sides):
        return ChoiceRatio(1.0, Interval(1.0, 1.0))  # of ways to themselves
    ratios = [
        mine / theirs
        for shape, (chosen, against) in zip(timed, sides, strict=True)
        for mine, theirs in zip(_by_round(shape, chosen), _by_round(shape, against), strict=False)
    ]
    return ChoiceRatio(median(ratios) if ratios else float("nan"), over_rounds(ratios, looks))


def _by_round(shape: TunedShape, ways: Sequence[ModeTime]) -> list[float]:
    """Sum the seconds of a layer's three products; return nothing if one is missing."""
    if sorted(way.role for way in ways) != ["forward", "input_gradient", "weight_gradient"]:
        return []
    parts = [[(shape.forwards if way.role == "forward" else 1) * s for s in way.by_round_s] for way in ways]
    return [sum(part) for part in zip(*parts, strict=True)]
