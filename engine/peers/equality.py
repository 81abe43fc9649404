"""Both sides of a comparison have to train alike. No torch."""

from collections.abc import Sequence

from engine.errors import RunError
from engine.peers.comparison import Tolerance
from engine.result.metrics import relative_difference
from engine.result.peers import PeerContest


def check_equal(
    name: str, ours: Sequence[tuple[float, float]], peer: Sequence[tuple[float, float]], tolerance: Tolerance
) -> None:
    """Raises RunError unless both sides had the same losses, a pair a step, and the same first gradient norm, up to the
    tolerance.

    Later norms are only reported: on processors PyTorch's norm of 4 million fp32 elements is off by 2e-5, another way
    to sum them is not, and clipping by it hands the difference on (1e-4 in the third step, while losses differed by
    1e-7).
    """
    for step, (a, b) in enumerate(zip(ours, peer, strict=True)):
        for what, x, y, most in zip(("loss", "gradient norm"), a, b, tolerance, strict=True):
            if (step == 0 or what == "loss") and not relative_difference(x, y) <= most:
                raise RunError(
                    f"The engine and {name} don't do the same: in step {step} the engine's {what} was {x:.7g} and "
                    f"that of {name} {y:.7g}, more than {most:g} apart, so their times can't be compared."
                )


def check_apart(name: str, contest: PeerContest, tolerance: Tolerance) -> None:
    """Check sides that were measured in processes of their own. Raises RunError."""
    ours, peer = (list(zip(side.losses, side.gradient_norms, strict=True)) for side in (contest.ours, contest.peer))
    check_equal(name, ours, peer, tolerance)
