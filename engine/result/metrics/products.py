"""Matrix products of layers, and the choice of their modes."""

from collections.abc import Sequence

from engine.result.definition import figure


@figure("Rate of a product", "2 * m * n * k / time_s")
def product_rate(m: int, n: int, k: int, time_s: float) -> float:
    """It is the flop/s of one rank in a matrix product of [m, k] by [k, n], with copies of operands that its mode
    takes.

    Ranks that share processors multiply at once, as they train; one accelerator stands for all. Operands are drawn from
    a normal distribution.
    """
    return 2 * m * n * k / time_s


@figure("Share of choices that hold", "sum(high <= 1.03 for low, high in shapes) / len(shapes)")
def choices_that_hold(shapes: Sequence[tuple[float, float]]) -> float:
    """It counts those shapes that the tuner chose for whose layers take at most 1.03 times as long as chosen as in the
    ways that were fastest when they were first timed.

    A second timing of all ways in turns decides, by the interval of the median ratio over its rounds: where it reaches
    beyond 1.03 the choice is not known to hold. What was chosen and fastest takes 1.0 times as long by definition.
    """
    return sum(high <= 1.03 for _, high in shapes) / len(shapes)
