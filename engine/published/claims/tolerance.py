"""Tolerances of verdicts on published claims: one rule for each kind of claim, fixed before any verdict. Without torch.

They say when a published claim counts as reproduced. What a run of a suite has to reach is another matter: the
`tolerance` of a number (engine/published/__init__.py).
"""

from math import inf
from typing import Literal, NamedTuple

from engine.published import Number

Kind = Literal["number", "share", "ratio", "order"]
"""Rate, time or amount with a unit; part of a whole; how many times as much; who is ahead."""


class Tolerance(NamedTuple):
    """Distance from the published value, up or down, within which a measurement reproduces it."""

    amount: float
    of_the_value: bool
    """Whether the amount is a part of the published value, or is added to it as it is."""
    reason: str


TOLERANCES: dict[Kind, Tolerance] = {
    "number": Tolerance(
        0.10,
        True,
        "10 % of a rate, a time or an amount: jobs of one machine and one program differ by several per cent from "
        "night to night, and libraries and drivers have changed since the paper",
    ),
    "share": Tolerance(
        0.05,
        False,
        "5 points of per cent: papers print shares without decimals, of times that each vary by several per cent, so "
        "that the same gain measured twice may be several points apart",
    ),
    "ratio": Tolerance(
        0.05,
        True,
        "5 % of the ratio, so 5 points where the published ratio is taken as 100 %: 1.18x is reproduced from 1.121x to "
        "1.239x, 8x from 7.6x to 8.4x. Points of 100 % of the base would be 0.6 % of 8x, and points of time saved "
        "would take 7x to 24x for 11x. It is half of a number's, as both sides run on one machine and drift together",
    ),
    "order": Tolerance(0.0, False, "the sign of the difference: who is ahead has no size"),
}


def value_of(kind: Kind, number: Number, out_of: int | None = None) -> tuple[float, float]:
    """Return both ends of a published number in a claim's unit, equal where it is no range: SI units of a number, a
    fraction of a share, also of a count out of so many, and the number of times of a ratio.
    """
    part = out_of if kind == "share" and out_of else 1
    low = number.si / part
    high = number.highest_si
    return low, low if high is None else high / part


def band(kind: Kind, number: Number, out_of: int | None = None) -> tuple[float, float]:
    """Return the ends of the values that reproduce a published number; a bound has one end."""
    low, high = value_of(kind, number, out_of)
    tolerance = TOLERANCES[kind]
    below, above = (tolerance.amount * abs(end) if tolerance.of_the_value else tolerance.amount for end in (low, high))
    return (-inf if number.bound == "at most" else low - below, inf if number.bound == "at least" else high + above)
