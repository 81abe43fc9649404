"""The all-reduce of the flat gradient buffer over data, piece by piece as its elements become final.

axonn-ipdps22 V-C: while one bucket is summed, the optimizer steps the one before.
"""

from collections import deque
from collections.abc import Iterator

import torch
from torch import Tensor

from engine.comm.funnel import Comm, Handle, Kind
from engine.grid import Axis


class Buckets:
    """Pieces [start, stop) of one flat buffer. dtype: in which they are summed; limit: elements of a bucket."""

    def __init__(self, comm: Comm, buffer: Tensor, dtype: torch.dtype, limit: float) -> None:
        self._comm, self._buffer, self._dtype, self._limit = comm, buffer, dtype, limit
        self._open: tuple[int, int] | None = None
        self._flights: deque[tuple[int, int, Handle]] = deque()

    def add(self, start: int, stop: int) -> None:
        """These elements are final on this rank. Neighbours travel together, up to the limit."""
        if self._open is not None and start == self._open[1]:
            self._open = (self._open[0], stop)
        elif self._open is not None and stop == self._open[0]:
            self._open = (start, self._open[1])
        else:
            self._issue()
            self._open = (start, stop)
        if self._open[1] - self._open[0] >= self._limit:
            self._issue()

    def collect(self) -> Iterator[tuple[int, int]]:
        """Every piece, as soon as it is summed, in the order in which they were issued."""
        self._issue()
        while self._flights:
            start, stop, handle = self._flights.popleft()
            piece, total = self._buffer[start:stop], handle.wait()
            if total.data_ptr() != piece.data_ptr():
                piece.copy_(total)
            yield start, stop

    def abort(self) -> None:
        """Forget what is in flight, which is somebody else's care."""
        self._open = None
        self._flights.clear()

    def _issue(self) -> None:
        if self._open is None:
            return
        (start, stop), self._open = self._open, None
        piece = self._buffer[start:stop]
        sent = piece.to(self._dtype) if self._comm.grid.data > 1 else piece
        handle = self._comm.issue(Kind.ALL_REDUCE, Axis.DATA, sent)
        self._flights.append((start, stop, handle))
