"""Check of the formula by which utilisation is told, against the flops that were counted."""

from collections.abc import Iterable

from reframe.core.exceptions import SanityError

from engine.result.schema.bench import CountedStep


def check_formula(steps: Iterable[CountedStep]) -> None:
    """Compare to the last flop. Raises SanityError where the formula isn't what was counted."""
    for step in steps:
        if step.counted != step.formula:
            raise SanityError(
                f"a step that recomputes {step.recomputed} has {step.counted:,} flops, but {step.formula:,} by the "
                "formula: correct engine/models/flops.py, or the table of the network"
            )
