"""Limits of two loss curves that are to be the same: step by step but for rounding, or in their course. No torch."""

from collections.abc import Sequence

from engine.result import metrics

TOLERANCES = {"fp64": 1e-12, "fp32": 1e-5}
"""The largest relative difference of two losses of the same step, by number format.

These are forty times as far as rounding took 100 steps, or more: 6e-15 in fp64 on 2x2x2x2; 2.5e-7 in fp32, the most of
twelve layers of 64 and of 128 features with micro-batches of one and on two ranks of x, of 64 on two of y and z too,
and in float64. A weight decay that is 10 % off moved these by 1.5e-5. The 125M network itself has not been measured.
"""


def apart(parallel: Sequence[float], serial: Sequence[float], precision: str) -> str | None:
    """Say how the curves differ by more than rounding; None if they don't."""
    difference, step = metrics.curve_difference(parallel, serial)
    if difference <= TOLERANCES[precision]:
        return None
    return f"differ by {difference:.1e} at step {step + 1}, but {TOLERANCES[precision]:g} is allowed in {precision}"


COURSE = 3e-3
"""The largest relative difference of two means of metrics.WINDOW steps.

This is ten times as far as rounding in bf16 took a GPT of two layers in 2,000 steps: its means by 2.8e-4 between
splits of weights and of data, by 1.2e-4 between stages and data, where steps differed by 3e-3. A weight decay of 0.1
instead of 0.01 moved its means by 7e-3. The papers' networks have not been measured.
"""


def astray(losses: Sequence[float], references: Sequence[float]) -> str | None:
    """Say how one long curve leaves the course of another; None if it doesn't."""
    difference, window = metrics.curve_difference(*map(metrics.window_means, (losses, references)))
    if difference <= COURSE:
        return None
    return (
        f"differ by {difference:.1e} in the mean of about {metrics.WINDOW} steps from step "
        f"{window * metrics.WINDOW + 1} on, but {COURSE:g} is allowed"
    )


def limit(precision: str, *, long: bool) -> float | None:
    """Return the largest difference of a long curve's means, or of a short one's steps, that is allowed; None for a
    number format of which nothing is known.
    """
    return COURSE if long else TOLERANCES.get(precision)
