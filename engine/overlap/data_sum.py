"""Sum the flat gradient buffer over model replicas, piece by piece as its elements become final within each.

axonn-ipdps22 V-C: while one bucket is summed, the optimizer steps the one before.
"""

from collections import deque
from collections.abc import Iterator

import torch
from torch import Tensor

from engine.comm.funnel import Comm, Handle, Kind
from engine.grid import REPLICATING


class DataSum:
    """It sums pieces [start, stop) of one flat buffer. dtype: in which they travel; bucket: elements that fill one."""

    def __init__(self, comm: Comm, buffer: Tensor, dtype: torch.dtype) -> None:
        self._comm, self._buffer, self._dtype = comm, buffer, dtype
        self.bucket = torch.inf
        self._open: tuple[int, int] | None = None
        """This bucket is being filled."""
        self._pending: deque[tuple[int, int, Handle]] = deque()

    def add(self, start: int, stop: int) -> None:
        """Take in elements that are final on this rank. Neighbours travel together until they fill a bucket."""
        if self._open is not None and start == self._open[1]:
            self._open = (self._open[0], stop)
        elif self._open is not None and stop == self._open[0]:
            self._open = (start, self._open[1])
        else:
            self._issue()
            self._open = (start, stop)
        if self._open[1] - self._open[0] >= self.bucket:
            self._issue()

    def collect(self) -> Iterator[tuple[int, int]]:
        """Yield every piece, as soon as it is summed, in the order in which they were issued."""
        self._issue()
        while self._pending:
            start, stop, handle = self._pending.popleft()
            summed = self._comm.sum(handle.wait(), REPLICATING[1:])
            self._buffer[start:stop].copy_(summed)  # costs nothing where the piece was summed in place
            yield start, stop

    def abort(self) -> None:
        """Forget all pieces, once Comm.abandon() has waited for those in flight."""
        self._open = None
        self._pending.clear()

    def _issue(self) -> None:
        if self._open is None:
            return
        (start, stop), self._open = self._open, None
        piece = self._buffer[start:stop]
        sent = piece.to(self._dtype) if self._comm.grid.model_replicas > 1 else piece
        self._pending.append((start, stop, self._comm.issue(Kind.ALL_REDUCE, REPLICATING[0], sent)))
