"""Whether both sides of a contest train alike. No torch."""

from collections.abc import Sequence

from engine.errors import RunError
from engine.result.metrics import relative_difference
from engine.result.peers import Measured


def check_equal(
    name: str, ours: Sequence[tuple[float, float]], peer: Sequence[tuple[float, float]], tolerance: float
) -> None:
    """Raises RunError unless both sides had the same losses and gradient norms, a pair a step, up to the tolerance."""
    for step, (a, b) in enumerate(zip(ours, peer, strict=True)):
        for what, x, y in zip(("loss", "gradient norm"), a, b, strict=True):
            if not relative_difference(x, y) <= tolerance:
                raise RunError(
                    f"The engine and {name} don't do the same: in step {step} the engine's {what} was {x:.7g} and "
                    f"that of {name} {y:.7g}, more than {tolerance:g} apart, so their times can't be compared."
                )


def check_apart(name: str, measured: Measured, tolerance: float) -> None:
    """The same of sides that were measured in processes of their own. Raises RunError."""
    ours, peer = (list(zip(side.losses, side.gradient_norms, strict=True)) for side in (measured.ours, measured.peer))
    check_equal(name, ours, peer, tolerance)
