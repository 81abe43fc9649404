"""Loss curves of the same training may be a little apart, as rounding moves them, and nothing else does."""

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
