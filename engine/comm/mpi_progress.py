"""What MPI has begun is carried on by a thread, whatever the rank itself waits for or computes.

Most MPIs carry on only while a rank calls them, and a large message takes several calls of its sender's (a rendezvous),
of which the last may come after MPI has said that the message is sent: Open MPI keeps what a socket has no room for.
Without the thread it would stand still while the sender waits for a collective over gloo, for a store, a file or a
device; and so would the rank that is to receive it, for which the sender may be waiting.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from engine.comm.contact import Line, LostContact
from engine.comm.handle import Arriving
from engine.measure.pending import Pending

SPIN_S, PAUSE_S = 0.01, 5e-5
"""A rank that waits asks again at once for so long, then pauses each time: for as long the core may be another's."""
LOOK_S, IDLE_S = 1e-3, 1e-2
"""Pauses of the thread between two calls of MPI: while anything is known to be under way, and while nothing is."""
LEAVE_S = 10.0
"""Longest wait for the thread's end, which takes one look."""


class Progress:
    """MPI's calls of this process, one at a time, and the thread that makes some while anything is under way.

    mpi: mpi4py's module, initialised for threads that call it in turns (MPI_THREAD_SERIALIZED).
    """

    def __init__(self, mpi: Any) -> None:
        self.mpi = mpi
        self.turn = threading.Condition()
        """Held during each call of MPI."""
        self.lost = False
        """Whether a rank has not answered, so that MPI's own end would wait for it for ever."""
        self._under_way: dict[Begun, None] = {}
        self._thread: threading.Thread | None = None
        self._ending = False

    def begin(self, device: torch.device) -> None:
        """Start the thread, unless it is there. device: whose memory MPI reads and writes."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._carry_on, args=(device,), name="mpi", daemon=True)
            self._thread.start()

    @contextmanager
    def calling(self, line: Line) -> Iterator[None]:
        """Have the turn for calls of MPI. Raises LostContact where one fails."""
        try:
            with line.held(), self.turn:
                yield
        except LostContact:
            self.lost = True
            raise

    def add(self, one: "Begun") -> None:
        """Look at this one, too, until it is over. Who calls has the turn."""
        if not self._under_way:
            self.turn.notify()
        self._under_way[one] = None

    def remove(self, one: "Begun") -> None:
        """Look at this one no more. Who calls has the turn."""
        del self._under_way[one]

    def end(self) -> None:
        """End the thread, as MPI must not be called after its end."""
        with self.turn:
            self._ending = True
            self.turn.notify()
        if self._thread is not None:
            self._thread.join(LEAVE_S)

    def _carry_on(self, device: torch.device) -> None:
        if device.type == "cuda":  # MPI copies within the context that is current on the thread, of which it has none
            torch.cuda.set_device(device)
            torch.cuda.current_stream(device).query()
        with self.turn:
            while not self._ending:
                for one in [*self._under_way]:
                    one.look()
                if not self._under_way:
                    with suppress(self.mpi.Exception):  # which the next message tells, too
                        self.mpi.COMM_WORLD.Iprobe()
                self.turn.wait(LOOK_S if self._under_way else IDLE_S)


class Begun(Arriving):
    """Request that MPI has begun.

    due: tag and size of a message that is received. buffers: memory that MPI reads or writes until it is over.
    """

    def __init__(
        self,
        progress: Progress,
        request: Any,
        line: Line,
        timeout_s: float,
        pending: Pending | None = None,
        due: tuple[int, int] | None = None,
        buffers: tuple[Tensor, ...] = (),
    ) -> None:
        """Take note of a request. Who calls has MPI's turn."""
        self._progress, self._request, self._line, self._timeout_s = progress, request, line, timeout_s
        self._pending, self._due, self._buffers = pending, due, buffers
        self._status = progress.mpi.Status()
        self._over, self._error = False, None  # type: bool, Exception | None
        progress.add(self)

    def __call__(self) -> None:
        """Wait until it is over, with the others' cores in mind. Raises LostContact, and ValueError for a message that
        isn't the one that is due.
        """
        begun = time.monotonic()
        while not self.arrived():
            waited_s = time.monotonic() - begun
            if waited_s > self._timeout_s:
                self._progress.lost = True
                raise LostContact(self._line, TimeoutError(f"no answer within {self._timeout_s:g} s"))
            if waited_s < SPIN_S:
                os.sched_yield()
            else:
                time.sleep(PAUSE_S)
        status, unit = self._status, self._progress.mpi.BYTE
        if self._due is not None and self._due != (status.tag, status.Get_count(unit)):
            raise ValueError("A message came that isn't the one to be received.")

    def arrived(self) -> bool:
        """Say whether it is over. Raises as waiting for it does."""
        if not self._over:
            with self._progress.turn:
                self.look()
        if self._error is not None:
            raise self._error
        if self._over and self._pending is not None:
            self._pending.end()
            self._pending = None
        return self._over

    def look(self) -> None:
        """Ask MPI whether it is over. Who calls has MPI's turn."""
        if self._over:
            return
        mpi = self._progress.mpi
        try:
            self._over = bool(self._request.Test(self._status))
        except mpi.Exception as error:
            self._over, self._error = True, self._meaning(error)
        if self._over:
            self._progress.remove(self)

    def _meaning(self, error: Exception) -> Exception:
        if error.Get_error_class() == self._progress.mpi.ERR_TRUNCATE:  # type: ignore[attr-defined]
            return ValueError("A message came that is longer than the one to be received.")
        self._progress.lost = True
        return LostContact(self._line, error)
