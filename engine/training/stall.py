"""Find a rank that stands still: it waits for a collective, and none begins or ends any more.

Over gloo such a wait raises in the rank's own thread once --timeout is over, with as good a message, so that the watch
is only for waits that don't raise. On CUDA the host waits for its device, for ever; NCCL ends the process after
--timeout and another minute, from a thread of its own and without a result. There a thread of ours comes before, which
only reads what the main thread has written: nothing here asks the device or a process group, which may not answer.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from engine.comm.collective import lane_name
from engine.comm.contact import Route
from engine.comm.funnel import Comm
from engine.errors import ContactError

BEFORE_NCCL = 0.9
"""Share of the time-out of collectives, which NCCL counts from when one was issued."""
AFTER_RAISING = 2.0
"""Time-outs that pass where the wait itself raises, so that it does so first."""
LOOKS = 20
LONGEST_PAUSE_S = 1.0


class Stalled(ContactError):
    """No step of this rank for too long. detail: which collective it is at, as far as it knows."""

    def __init__(self, line: Route, seconds: float, detail: str) -> None:
        self._line, self._seconds = line, seconds
        super().__init__(self.story(), detail)

    def story(self, lost: Collection[int] = ()) -> str:
        """Name whom it waits for, of several those that are known to be lost (ContactError.story)."""
        line = self._line
        return f"rank {line.rank} made no step for {self._seconds:.3g} s, waiting for {line.whom(lost)} {line.where}"


@contextmanager
def watched(comm: Comm, timeout_s: float, end: Callable[[Stalled], object]) -> Iterator["Watch"]:
    """Call end from another thread if this rank stands still meanwhile. timeout_s: of comm's collectives, until the
    watch that is yielded allows another.

    What takes its time without waiting for another rank is left alone: compute, compilers, checkpoints. On CUDA that
    holds from the end of a step to the next collective.
    """
    watch = Watch(comm, timeout_s)
    if comm.grid.size == 1:
        yield watch
        return
    over = threading.Event()
    thread = threading.Thread(target=_look_on, args=(watch, end, over), name="stall", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join(LONGEST_PAUSE_S)  # a process group that it would free while the interpreter ends aborts the process


def _look_on(watch: "Watch", end: Callable[[Stalled], object], over: threading.Event) -> None:
    while not over.wait(min(LONGEST_PAUSE_S, watch.limit_s / LOOKS)):
        if stalled := watch.look(time.monotonic()):
            end(stalled)
            return


class Watch:
    """Watch that finds, from one look to the next, whether a rank waits for one collective for limit_s or longer."""

    def __init__(self, comm: Comm, timeout_s: float) -> None:
        self._comm, self._host_waits = comm, comm.device.type != "cuda"
        self._moves, self._since = -1, 0.0
        self.allow(timeout_s)

    def allow(self, timeout_s: float) -> None:
        """Take another time-out for the collectives that follow."""
        self.limit_s = timeout_s * (AFTER_RAISING if self._host_waits else BEFORE_NCCL)

    def look(self, now: float) -> Stalled | None:
        """Look at that time, in seconds of any clock, and give what to report; None while all is well."""
        outstanding = self._comm.outstanding
        call = outstanding.awaited or (None if self._host_waits else outstanding.unconfirmed)
        if call is None or outstanding.moves != self._moves:
            self._moves, self._since = outstanding.moves, now
            return None
        if now - self._since < self.limit_s:
            return None
        kind, axis, lane = call
        rank, known = self._comm.rank, "" if self._host_waits else "the last that it issued is "
        members = outstanding.ranks or self._comm.grid.members(axis, rank)
        line = Route(rank, f"on axis {axis}", members, "")
        return Stalled(line, now - self._since, f"{known}{kind} on lane {lane_name(axis, lane)}")
