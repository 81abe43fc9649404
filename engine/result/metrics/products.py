"""Matrix products of layers, and the choice of their modes."""

from collections.abc import Sequence

from engine.result.definition import figure


@figure("Rate of a product", "2 * m * n * k / time_s")
def product_rate(m: int, n: int, k: int, time_s: float) -> float:
    """Flop/s of one rank in a matrix product of [m, k] by [k, n], copies of operands that its mode takes included.

    Ranks that share processors multiply at once, as they train; one accelerator stands for all. Operands are drawn from
    a normal distribution.
    """
    return 2 * m * n * k / time_s


@figure("Share of choices that hold", "sum(chosen_s <= 1.03 * best_s for chosen_s, best_s in shapes) / len(shapes)")
def choices_that_hold(shapes: Sequence[tuple[float, float]]) -> float:
    """Of the shapes that the tuner chose for, those whose layers are as fast as chosen as in the best way that there
    was, or within 3 % of it, in a second timing of all ways that the choice knew nothing of.
    """
    return sum(chosen_s <= 1.03 * best_s for chosen_s, best_s in shapes) / len(shapes)
