"""Sides that are measured in parts, where a device can't hold both, and the check that they train alike. No torch."""

from collections.abc import Sequence
from itertools import chain

from engine.peers.comparison import Case, Comparison
from engine.result.schema.peers import SIDES, PeerContest, PeerSide, SideName
from engine.training.equality import TOLERANCES, Tolerance, check_equal


def order_in_a_job(number: int) -> tuple[SideName, ...]:
    """Order the sides' processes in a job, by its number from 0: each side's come first in every other job."""
    return SIDES if number % 2 == 0 else SIDES[::-1]


def parts_in_a_launch(rounds: int) -> list[tuple[tuple[SideName, ...], int]]:
    """List what the same processes build and drop, one after the other, and for how many rounds.

    Half of the engine's rounds come before the peer's and half after them, so that of a machine that gets slower or
    faster neither side has the better part. Of an odd number more come before.
    """
    later = rounds // 2
    parts: list[tuple[tuple[SideName, ...], int]] = [(("ours",), rounds - later), (("peer",), rounds)]
    return [*parts, (("ours",), later)] if later else parts


def put_together(comparison: Comparison, case: Case, parts: Sequence[PeerContest]) -> PeerContest:
    """Join parts that each have one side. Raises RunError if losses or gradient norms differ anywhere."""
    ours = [part for part in parts if part.ours.rounds_s]
    peers = [part.peer for part in parts if part.peer.rounds_s]
    for one in ours:
        for peer in peers:
            check_apart(comparison.name, PeerContest.of(one.ours, peer), TOLERANCES[case.precision])
    joined, first = _joined([one.ours for one in ours]), ours[0]
    return PeerContest.of(joined, _joined(peers), first.tuning, first.compiled)


def _joined(sides: Sequence[PeerSide]) -> PeerSide:
    """Join all rounds of a side, in their order, and take the most memory that it took."""
    return sides[0].model_copy(
        update={
            "rounds_s": tuple(chain.from_iterable(side.rounds_s for side in sides)),
            "cpu_s": tuple(chain.from_iterable(side.cpu_s for side in sides)),
            "peak_bytes": max((side.peak_bytes for side in sides if side.peak_bytes is not None), default=None),
        }
    )


def check_apart(name: str, contest: PeerContest, tolerance: Tolerance) -> None:
    """Check sides that were measured in processes of their own. Raises RunError."""
    ours, peer = (list(zip(side.losses, side.gradient_norms, strict=True)) for side in (contest.ours, contest.peer))
    check_equal(name, ours, peer, tolerance)
