"""Equality of what two sides of a contest train: losses and gradient norms, up to rounding. No torch."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from engine.errors import RunError
from engine.result.metrics import relative_difference
from engine.training_record import PrecisionName

Values = tuple[float, float]
"""Loss and gradient norm of a step."""


UNEQUAL = "don't do the same"
"""Words of the error of sides that train differently."""


class Tolerance(NamedTuple):
    """Largest relative difference allowed between both sides' losses, and between their first gradient norms."""

    losses: float
    norms: float


TOLERANCES: dict[PrecisionName, Tolerance] = {
    "fp64": Tolerance(2e-13, 2e-13),
    "fp32": Tolerance(1e-5, 1e-4),
    "bf16": Tolerance(1e-2, 1e-2),
    "fp16": Tolerance(1.25e-3, 1.25e-3),
}
"""A rounding is an eps of the compute format: 2^-52, 2^-23, 2^-7, 2^-10. Both sides take the same sums in another
order. The roundings of a deep network add up like a random walk, and AdamW's first steps make a step of full length of
a gradient as small as its rounding. Seen in the first four steps of 2 and 6 blocks were 2 eps in fp64 and fp32, and 0.3
in bf16, whose losses and norms are sums in fp32 of many values.

So fp64 has room for about a thousand eps, and fp32 for a hundred, but for norms: on processors PyTorch's own is off by
2e-5. In bf16 there is room for four times what was seen: gradients that are 3 % off are found, an optimizer that never
steps is not. What changes so little is found in fp32 and fp64, in which tests train the same code of every peer. fp16
has as many eps as bf16: an eighth of its tolerance.
"""


def check_equal(name: str, ours: Sequence[Values], peer: Sequence[Values], tolerance: Tolerance) -> None:
    """Check the steps of the engine's side of a contest and of the peer of that name, from the first on (check_steps).

    Raises RunError.
    """
    check_steps("the engine", name, dict(enumerate(zip(ours, peer, strict=True))), tolerance)


def check_steps(one: str, other: str, steps: Mapping[int, tuple[Values, Values]], tolerance: Tolerance) -> None:
    """Raise RunError unless two sides had the same losses, a pair a step, and the same gradient norm in step 0, up to
    the tolerance. steps: the values of both sides by the number of the optimizer's step.

    Later norms are only reported: on processors PyTorch's norm of 4 million fp32 elements is off by 2e-5, another way
    to sum them is not, and clipping by it hands the difference on (1e-4 in the third step, while losses differed by
    1e-7).
    """
    for step, (a, b) in steps.items():
        for what, x, y, most in zip(("loss", "gradient norm"), a, b, tolerance, strict=True):
            if (step == 0 or what == "loss") and not relative_difference(x, y) <= most:
                raise RunError(
                    f"{one[0].upper()}{one[1:]} and {other} {UNEQUAL}: in step {step} the {what} was {x:.7g} "
                    f"in {one} and {y:.7g} in {other}, more than {most:g} apart, so their times can't be compared."
                )
