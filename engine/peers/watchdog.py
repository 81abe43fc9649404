"""A side of a comparison may stand still: each of its turns has a limit, and what exceeds it is named. No torch.

A peer waits in its own library, of whose collectives we know nothing: only that its turn doesn't end.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from engine.errors import ContactError
from engine.peers.comparison import Case, Comparison
from engine.result.peers import SideName


@dataclass(frozen=True, slots=True)
class Turn:
    """A rank is at this, in words. limit_s: how long at most, as the option says. peers: whether it is the peer's."""

    at: str
    limit_s: float
    option: str
    peers: bool = False


At = Callable[[Turn], object]
"""It is called with each turn as it begins."""
Fail = Callable[[ContactError, Comparison], object]
"""It is called from another thread when a rank stands still."""


def nobody(_: Turn) -> None:
    """Take no notice of a turn, where nobody asks."""


def start(case: Case) -> Turn:
    """It lasts until the first side is built."""
    return Turn("its start", case.meeting_timeout_s, "--meeting-timeout")


def warm_up(side: SideName, comparison: Comparison, case: Case) -> Turn:
    """A side is loaded, built and warmed up, for which it may have to compile."""
    return Turn(f"{_whose(side, comparison)} warm-up", case.meeting_timeout_s, "--meeting-timeout", side == "peer")


def timed(side: SideName, comparison: Comparison, case: Case, index: int) -> Turn:
    """A side takes the steps of one round, counted from 0."""
    at = f"{_whose(side, comparison)} round {index + 1} of {case.rounds}"
    return Turn(at, case.timeout_s, "--timeout", side == "peer")


def end(case: Case) -> Turn:
    """What was measured is collected after the last round."""
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
        timer = threading.Timer(turn.limit_s, fail, [late, comparison])
        timer.daemon = True
        timer.start()

    try:
        yield begin
    finally:
        if timer:
            timer.cancel()
