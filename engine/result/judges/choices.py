"""Judge whether the tuner's choices are as fast as PyTorch's own ways, and as the fastest there were. No torch.

A second timing judges, which the choice knew nothing of. All ways take turns in each of its rounds, so the ratio of two
is taken round by round, and what disturbs a whole round cancels.
"""

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from engine.result import metrics
from engine.result.gate import Interval, Outcome, at_most, over_rounds
from engine.result.schema.tuning import ModeTime, TunedShape

SLOWEST = 1.03
"""A choice may take so many times as long as other ways: no two timings are equal."""
LOOKS = 3
"""A second timing is looked at so often: of so many rounds, twice and four times as many (tuning/tune.py)."""
_BY_DEFINITION = 1.0
"""Ratio of ways to themselves, which noise doesn't change."""


class ChoiceRatio(NamedTuple):
    """Ratio of the choice to other ways: the median over rounds of seconds by seconds, and its interval."""

    ratio: float
    interval: Interval

    @property
    def outcome(self) -> Outcome:
        """Say whether the choice is fast enough."""
        return at_most(self.interval, SLOWEST)


def by_own(*timed: TunedShape, looks: int = LOOKS) -> ChoiceRatio:
    """Compare all products of a layer as chosen with PyTorch's own ways, which copy nothing and store weights row by
    row.

    timed: the layer's shape, as often as it was tuned. Of several times the rounds count together, and tell of these
    times alone. looks: how often they may be looked at in all.
    """
    return _ratio(timed, lambda way: way.own and not way.column_major, looks)


def by_fastest(*timed: TunedShape, looks: int = LOOKS) -> ChoiceRatio:
    """Compare them with the ways that were fastest in the first timing: who wins one by luck does not win the next."""
    return _ratio(timed, lambda way: way.fastest, looks)


def share_that_holds(found: Sequence[ChoiceRatio]) -> Interval:
    """Say of contests with the fastest, one or more: how many choices are as fast for certain, and how many may be."""
    failed = sum(contest.outcome == "fail" for contest in found)
    return Interval(metrics.choices_that_hold([contest.interval for contest in found]), 1 - failed / len(found))


def _ratio(timed: Sequence[TunedShape], others: Callable[[ModeTime], bool], looks: int) -> ChoiceRatio:
    """Make the ratio. Of too few rounds, or where some ways have no times, or no rounds, nothing is known."""
    sides = [
        ([way for way in shape.times if way.chosen], [way for way in shape.times if others(way)]) for shape in timed
    ]
    if all(chosen and chosen == against for chosen, against in sides):
        return ChoiceRatio(_BY_DEFINITION, Interval(_BY_DEFINITION, _BY_DEFINITION))
    ratios = [
        mine / theirs
        for shape, (chosen, against) in zip(timed, sides, strict=True)
        for mine, theirs in zip(_by_round(shape, chosen), _by_round(shape, against), strict=False)
    ]
    return ChoiceRatio(median(ratios) if ratios else float("nan"), over_rounds(ratios, looks))


def _by_round(shape: TunedShape, ways: Sequence[ModeTime]) -> list[float]:
    """Sum the seconds of a layer's three products; give nothing if one is missing."""
    if sorted(way.role for way in ways) != ["forward", "input_gradient", "weight_gradient"]:
        return []
    counted = {"forward": shape.forwards}
    parts = [[counted.get(way.role, 1) * s for s in way.by_round_s] for way in ways]
    return [sum(part) for part in zip(*parts, strict=True)]
