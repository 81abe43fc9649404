"""Two ranks on one card use the engine's channels and streams for NCCL, with gloo to carry what they send.

NCCL refuses two ranks on one card, and gloo takes only some kinds of collectives of CUDA tensors. So what is sent is
copied to the host, carried by the engine's own channel for gloo, and copied back, all on the stream that NCCL would
have used. What orders lanes and the computing stream is the engine's, and is really needed: a result comes late. So
does the copy of a message between stages: what is overwritten before it has left would be seen.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from engine.comm.backend import Channel, PendingMessage
from engine.comm.collective import IN_PLACE, OF_MESSAGES, Kind, Lane
from engine.comm.contact import Route
from engine.comm.groups import ProcessGroups
from engine.comm.nccl import CudaStreams, NcclChannel
from engine.grid import Axis
from engine.measure.pending import Pending

LATE_CYCLES = 2_000_000  # about a millisecond


class NoStream:
    """A processor has no streams: everything is done when it is asked for."""

    def wait_stream(self, other: object) -> None:
        """There is nothing to wait for."""

    def wait_event(self, event: object) -> None:
        """There is nothing to wait for."""

    def record_event(self) -> "NoStream":
        return self

    def synchronize(self) -> None:
        """There is nothing to wait for."""


class NoStreams:
    """Stands for CudaStreams on a processor."""

    def lane(self) -> NoStream:
        return NoStream()

    current = lane

    def use(self, stream: NoStream) -> AbstractContextManager[object]:
        return nullcontext()


def streams_of(device: torch.device) -> CudaStreams:
    """Return the device's streams, or what stands for them."""
    return CudaStreams(device) if device.type == "cuda" else cast(Any, NoStreams())


def keep_busy(device: torch.device, cycles: int = LATE_CYCLES) -> None:
    """Let the current stream be late, by a millisecond by default, so that what doesn't wait for it is too early."""
    if device.type == "cuda":
        torch.cuda._sleep(cycles)


class StagedChannel(NcclChannel):
    """NCCL's channel, whose collectives and messages another channel carries out on the host."""

    def __init__(self, carrier: Channel, streams: CudaStreams, line: Route) -> None:
        assert dist.group.WORLD is not None
        super().__init__(dist.group.WORLD, streams, line)
        self._carrier = carrier

    def carry_out(self, kind: Kind, source: Tensor, target: Tensor, root: int | None, pending: Pending | None) -> None:
        sent = source.cpu()  # the host waits for the current stream, and for no other
        received = sent if kind in IN_PLACE else torch.empty_like(target, device="cpu")
        self._carrier.start(kind, sent, received, root, None, blocking=True)()
        bring(received, target)

    def carry_out_messages(self, ops: list[dist.P2POp]) -> None:
        """See NcclChannel.carry_out_messages. All of them are on their way before one is waited for."""
        waits, arriving = [], []
        for op in ops:
            kind = Kind.SEND if op.op is dist.isend else Kind.RECV
            on_host = op.tensor.cpu() if kind is Kind.SEND else torch.empty_like(op.tensor, device="cpu")
            waits.append(self._carrier.start(kind, on_host, on_host, op.group_peer, None, blocking=False))
            if kind is Kind.RECV:
                arriving.append((on_host, op.tensor))
        for finish in waits:
            finish()
        for received, target in arriving:
            bring(received, target)


class StagedMessages:
    """In the place of NcclMessages: messages of one direction, those sent and those received each on a stream."""

    def __init__(self, carrier: Channel, streams: CudaStreams) -> None:
        self._carrier, self._streams = carrier, streams
        self._lanes = {kind: streams.lane() for kind in (Kind.SEND, Kind.RECV)}
        self._sender = ThreadPoolExecutor(1)

    def start(
        self, kind: Kind, source: Tensor, target: Tensor, peer: int | None, pending: Pending | None, *, blocking: bool
    ) -> Callable[[], None]:
        assert peer is not None
        lane = self._lanes[kind]
        lane.wait_stream(self._streams.current())
        on_host = torch.empty_like(target, device="cpu", pin_memory=target.is_cuda)
        if kind is Kind.RECV:
            coming = self._carrier.start(kind, on_host, on_host, peer, None, blocking=False)
            return StagedMessage(cast(PendingMessage, coming), on_host, target, self._streams, lane)
        with self._streams.use(lane):
            keep_busy(source.device)
            on_host.copy_(source, non_blocking=True)
            copied = lane.record_event()
        sent = self._sender.submit(self._send, copied, on_host, peer)

        def finish() -> None:
            self._streams.current().wait_event(copied)
            sent.result()

        return finish

    def _send(self, copied: torch.cuda.Event, on_host: Tensor, peer: int) -> None:
        """Have it carried once it is there, while the host goes on."""
        copied.synchronize()
        self._carrier.start(Kind.SEND, on_host, on_host, peer, None, blocking=False)()


class StagedMessage:
    """Message that comes to the host, and from there to the device when it is waited for."""

    def __init__(
        self, coming: PendingMessage, on_host: Tensor, target: Tensor, streams: CudaStreams, lane: torch.cuda.Stream
    ) -> None:
        self._coming, self._on_host, self._target = coming, on_host, target
        self._streams, self._lane = streams, lane

    def __call__(self) -> None:
        """Have the host wait for it, and the computing stream for its copy."""
        self._coming()
        with self._streams.use(self._lane):
            bring(self._on_host, self._target)
            done = self._lane.record_event()
        self._streams.current().wait_event(done)

    def watch(self, notify: Callable[[], None]) -> None:
        """See PendingMessage."""
        self._coming.watch(notify)

    def arrived(self) -> bool:
        """See PendingMessage."""
        return self._coming.arrived()


def bring(received: Tensor, target: Tensor) -> None:
    """Copy a result to the device, late."""
    keep_busy(target.device)
    target.copy_(received.pin_memory() if target.is_cuda else received, non_blocking=True)


class Staged(ProcessGroups):
    """Backend of a Comm; torch.distributed's default group is gloo's."""

    def channel(self, axis: Axis, lane: Lane, members: Sequence[int]) -> Channel:
        carrier, streams = super().channel(axis, lane, members), streams_of(self._device)
        if lane in OF_MESSAGES:
            return StagedMessages(carrier, streams)
        line = Route(self.rank, f"on axis {axis}", [member for member in members if member != self.rank], "gloo")
        return StagedChannel(carrier, streams, line)
