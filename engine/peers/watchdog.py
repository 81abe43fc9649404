"""Limits on the turns of a comparison, whose sides may stand still: what exceeds one is named. No torch.

A peer waits in its own library, of whose collectives we know only that its turn doesn't end.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from engine.errors import ContactError
from engine.peers.comparison import Case, Comparison
from engine.result.schema.peers import SideName


@dataclass(frozen=True, slots=True)
class Turn:
    """Part of a comparison."""

    at: str
    """Words for the turn."""
    limit_s: float
    """Longest time for it, as the option says."""
    option: str
    peers: bool = False
    """Whether it is the peer's."""


At = Callable[[Turn], object]
"""Called with each turn as it begins."""
Fail = Callable[[ContactError], object]
"""Called from another thread when a rank stands still."""


def nobody(_: Turn) -> None:
    """Take no notice of a turn, where nobody asks."""


def start(case: Case) -> Turn:
    """Limit the time until the first side is built."""
    return Turn("its start", case.meeting_timeout_s, "--meeting-timeout")


def warm_up(side: SideName, comparison: Comparison, case: Case) -> Turn:
    """Limit a side's loading, building and warm-up, for which it may have to compile."""
    return Turn(f"{_whose(side, comparison)} warm-up", case.meeting_timeout_s, "--meeting-timeout", side == "peer")


def timed(side: SideName, comparison: Comparison, case: Case, index: int) -> Turn:
    """Limit the steps of a side in one round, counted from 0."""
    at = f"{_whose(side, comparison)} round {index + 1} of {case.rounds}"
    return Turn(at, case.timeout_s, "--timeout", side == "peer")


def profiled(side: SideName, comparison: Comparison, case: Case) -> Turn:
    """Limit the profiled steps of a side."""
    return Turn(f"{_whose(side, comparison)} profile", case.timeout_s, "--timeout", side == "peer")


def end(case: Case) -> Turn:
    """Limit what is collected after the last round."""
    return Turn("its end", case.timeout_s, "--timeout")


def _whose(side: SideName, comparison: Comparison) -> str:
    return f"{comparison.name}'s" if side == "peer" else "the engine's"


@contextmanager
def limited(comparison: Comparison, rank: int, fail: Fail) -> Iterator[At]:
    """Call fail if a turn lasts too long, of those with which what is yielded is called."""
    timer: threading.Timer | None = None

    def begin(turn: Turn) -> None:
        nonlocal timer
        if timer:
            timer.cancel()
        clause = f"in the comparison with {comparison.name} rank {rank} has been at {turn.at} for {turn.limit_s:g} s"
        late = ContactError(f"{clause}, which is all that {turn.option} allows")
        timer = threading.Timer(turn.limit_s, fail, [late])
        timer.daemon = True
        timer.start()

    try:
        yield begin
    finally:
        if timer:
            timer.cancel()
