"""State of an optimizer in the host's memory, which visits the device a bucket at a time (axonn-ipdps22 V-B).

Of a parameter of a matrix the device holds 2 bytes in half precision and a gradient of 4, or of 2 (Precision.parse).
Two buckets take 24 bytes an element: fp32 weights and two moments each. The paper has 2 and 2 bytes, and 16 an element
of its one bucket, 4 of them for unscaled gradients; here a step scales them as it reads them.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from engine.comm.nccl import CudaStreams
from engine.optimizer_state import BUCKET, TURNS

Piece = tuple[int, int, list[Tensor]]
"""Elements [start, stop) of some tensors, on the device."""


class Buckets:
    """Buffers on the device, in which a bucket of each tensor on the host is changed.

    On a GPU buckets take turns: on a lane of its own one is fetched, or taken back, while another is changed. Whoever
    reads the tensors waits for the device's current stream first, as a trainer does at the end of a step.
    """

    def __init__(
        self, host: Sequence[Tensor], device: torch.device, size: int = BUCKET, streams: CudaStreams | None = None
    ) -> None:
        """Take the tensors, all of one length, and the most elements of a bucket. streams: of the device (default: what
        it has).
        """
        self._host = [tensor.data for tensor in host]  # whoever counts their changes is told of them (Casts)
        self._size = min(size, len(host[0]))
        self._buffers = [[tensor.new_empty(self._size, device=device) for tensor in host] for _ in range(TURNS)]
        self._streams = CudaStreams(device) if device.type == "cuda" else streams
        if self._streams is not None:
            self._lane = self._streams.lane()
            self._lane.wait_stream(self._streams.current())

    def visits(self, start: int, stop: int) -> Iterator[Piece]:
        """Yield these elements bucket by bucket; what has been changed when the next is asked for goes back."""
        places = [(low, min(low + self._size, stop)) for low in range(start, stop, self._size)]
        coming = deque(self._fetched(place, turn) for turn, place in enumerate(places[:TURNS]))
        for number, (low, high) in enumerate(places):
            bucket, there = coming.popleft()
            if self._streams is not None and there is not None:
                self._streams.current().wait_event(there)
            yield low, high, bucket
            self._take_back((low, high), bucket)
            if number + TURNS < len(places):
                coming.append(self._fetched(places[number + TURNS], number % TURNS))
        if self._streams is not None:
            self._streams.current().wait_stream(self._lane)

    def _fetched(self, place: tuple[int, int], turn: int) -> tuple[list[Tensor], "torch.cuda.Event | None"]:
        """Fetch a bucket to the buffers whose turn it is. On a GPU an event says when it is there."""
        low, high = place
        bucket = [buffer[: high - low] for buffer in self._buffers[turn]]
        with self._aside():
            for buffer, host in zip(bucket, self._host, strict=True):
                buffer.copy_(host[low:high], non_blocking=True)
            return bucket, None if self._streams is None else self._lane.record_event()

    def _take_back(self, place: tuple[int, int], bucket: list[Tensor]) -> None:
        """Write a bucket to the host, once the device has changed it."""
        if self._streams is not None:
            self._lane.wait_stream(self._streams.current())
        with self._aside():
            for buffer, host in zip(bucket, self._host, strict=True):
                host[place[0] : place[1]].copy_(buffer, non_blocking=True)

    def _aside(self) -> AbstractContextManager[object]:
        return nullcontext() if self._streams is None else self._streams.use(self._lane)
