"""NCCL (and RCCL, which has its name) runs collectives on CUDA streams, for which the host never waits.

Three rules keep memory right without a host synchronisation:

    a lane's stream waits for what the computing stream was given before the collective was issued
    the computing stream waits for the lane when the handle is waited for
    until then the handle keeps both buffers, so that the allocator can't give their memory to anybody
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from engine.comm.backend import launch, nothing
from engine.comm.collective import POINT_TO_POINT, Kind
from engine.comm.contact import Line
from engine.measure.pending import Pending


class CudaStreams:
    """All that this file asks of a CUDA device's streams goes through here."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def lane(self) -> torch.cuda.Stream:
        """Make a lane's stream, of high priority: with the default 0 NCCL's kernels wait until a weight gradient's have
        all begun.
        """
        return torch.cuda.Stream(self._device, priority=-1)

    def current(self) -> torch.cuda.Stream:
        """Give the device's current stream."""
        return torch.cuda.current_stream(self._device)

    def use(self, stream: torch.cuda.Stream) -> AbstractContextManager[object]:
        """Make it the current one for a while."""
        return torch.cuda.stream(stream)


def group_options(timeout: timedelta) -> Any:
    """Give the streams inside a process group high priority, too: torch before 2.8 runs every collective on them."""
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options._timeout = timeout  # new_group warns if its own time-out is another one
    return options


@dataclass(slots=True)
class _Messages:
    """These sends and receives are launched together. ready: all their buffers are; done: of their launch."""

    ops: list[dist.P2POp] = field(default_factory=list)
    collectives: list[Pending] = field(default_factory=list)
    ready: torch.cuda.Event | None = None
    done: torch.cuda.Event | None = None


class NcclChannel:
    """It is a process group of NCCL with a stream of its own: one communicator, which has to see one order."""

    def __init__(self, group: dist.ProcessGroup, streams: CudaStreams, line: Line) -> None:
        self._group, self._streams, self._lane, self._line = group, streams, streams.lane(), line
        self._messages = _Messages()

    def start(
        self, kind: Kind, source: Tensor, target: Tensor, peer: int | None, pending: Pending | None, *, blocking: bool
    ) -> Callable[[], None]:
        if kind in POINT_TO_POINT:
            return self._join_messages(kind, target, peer, pending)
        self._launch_messages()
        computing = self._streams.current()
        if blocking:
            # Stays where its result is needed, after what the lane still has in flight on the same communicator.
            computing.wait_stream(self._lane)
            self.carry_out(kind, source, target, pending)
            return nothing
        self._lane.wait_stream(computing)
        with self._streams.use(self._lane):
            self.carry_out(kind, source, target, pending)
            done = self._lane.record_event()
        return lambda: self._streams.current().wait_event(done)

    def carry_out(self, kind: Kind, source: Tensor, target: Tensor, pending: Pending | None) -> None:
        """Launch one collective on the current stream. async_op=False makes that stream wait, not the host."""
        if pending is not None:
            pending.begin(in_line=True)
        with self._line.held():
            launch(kind, self._group, source, target, None, async_op=False)
        if pending is not None:
            pending.end()

    def _join_messages(
        self, kind: Kind, buffer: Tensor, peer: int | None, pending: Pending | None
    ) -> Callable[[], None]:
        """Launch nothing yet: NCCL's send waits for the other's receive, so two ranks that both send first would hang.

        All that were issued are launched as one group when one of them is waited for, or when a collective comes. If
        that is the first use of the process group, NCCL wants every rank of it to take part.
        """
        messages = self._messages
        messages.ops.append(
            dist.P2POp(dist.isend if kind is Kind.SEND else dist.irecv, buffer, group=self._group, group_peer=peer)
        )
        messages.ready = self._streams.current().record_event()
        if pending is not None:
            messages.collectives.append(pending)

        def finish() -> None:
            if messages is self._messages:
                self._launch_messages()
            assert messages.done is not None
            self._streams.current().wait_event(messages.done)

        return finish

    def _launch_messages(self) -> None:
        messages = self._messages
        if messages.ready is None:
            return
        self._messages = _Messages()
        self._lane.wait_event(messages.ready)
        with self._streams.use(self._lane):
            for pending in messages.collectives:
                pending.begin()
            self.carry_out_messages(messages.ops)
            for pending in messages.collectives:
                pending.end()
            messages.done = self._lane.record_event()

    def carry_out_messages(self, ops: list[dist.P2POp]) -> None:
        """Launch sends and receives as one group, on the current stream."""
        with self._line.held():
            for work in dist.batch_isend_irecv(ops):
                work.wait()  # the stream does, not the host
