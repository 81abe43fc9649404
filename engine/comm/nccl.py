"""NCCL (and RCCL, which has its name): collectives on CUDA streams, for which the host never waits.

Three rules keep memory right without a host synchronisation:

    a lane's stream waits for what the computing stream was given before the collective was issued
    the computing stream waits for the lane when the handle is waited for
    until then the handle keeps both buffers, so that the allocator can't give their memory to anybody
"""

from collections.abc import Callable, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from engine.comm.backend import PendingMessage, launch, nothing
from engine.comm.collective import POINT_TO_POINT, Kind
from engine.comm.contact import Route
from engine.measure.pending import Pending

LOOK_EVERY = "TORCH_NCCL_COORD_CHECK_MILSEC"
RECORD, OLD_RECORD = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
"""Variables for the number of recorded collectives; of both names the first counts."""
FEW = 1000
"""Ranks for which torch's own choices do."""
LOOKS_PER_S = 1000
"""Looks into the store by all ranks together."""
RECORDED, LEAST_RECORDED = 2000, 250
"""Collectives that a rank records: by default, and at least. CUDA queues about a thousand launches, mostly compute, and
so far the host is ahead of what hangs.
"""


class CudaStreams:
    """Only door to a CUDA device's streams in this file."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def lane(self) -> torch.cuda.Stream:
        """Make a lane's stream, of high priority: else NCCL's kernels wait until a weight gradient's have all begun."""
        return torch.cuda.Stream(self._device, priority=-1)

    def current(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._device)

    def use(self, stream: torch.cuda.Stream) -> AbstractContextManager[object]:
        return torch.cuda.stream(stream)


def group_options(timeout: timedelta) -> Any:
    """Return options for streams of high priority inside a process group: torch before 2.8 runs collectives there."""
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options._timeout = timeout  # new_group warns if its own time-out is another one
    return options


@dataclass(slots=True)
class _Messages:
    """Sends and receives that are launched together. ready: all their buffers are; done: of their launch."""

    ops: list[dist.P2POp] = field(default_factory=list)
    collectives: list[Pending] = field(default_factory=list)
    ready: torch.cuda.Event | None = None
    done: torch.cuda.Event | None = None


class NcclChannel:
    """Process group of NCCL with a stream of its own: one communicator, which has to see one order."""

    def __init__(self, group: dist.ProcessGroup, streams: CudaStreams, route: Route) -> None:
        self._group, self._streams, self._lane, self._route = group, streams, streams.lane(), route
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
            self.carry_out(kind, source, target, peer, pending)
            return nothing
        self._lane.wait_stream(computing)
        with self._streams.use(self._lane):
            self.carry_out(kind, source, target, peer, pending)
            done = self._lane.record_event()
        return lambda: self._streams.current().wait_event(done)

    def carry_out(self, kind: Kind, source: Tensor, target: Tensor, root: int | None, pending: Pending | None) -> None:
        """Launch one collective on the current stream. async_op=False makes that stream wait, not the host."""
        if pending is not None:
            pending.begin(in_line=True)
        with self._route.guard():
            launch(kind, self._group, source, target, root, async_op=False)
        if pending is not None:
            pending.end()

    def _join_messages(
        self, kind: Kind, buffer: Tensor, peer: int | None, pending: Pending | None
    ) -> Callable[[], None]:
        """Launch nothing yet: NCCL's send waits for the other's receive, so two ranks that both send first would hang.

        All issued messages are launched as one group when one of them is waited for, or when a collective comes. If
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
        with self._route.guard():
            for work in dist.batch_isend_irecv(ops):
                work.wait()  # the stream does, not the host


def groups_of(ranks: int) -> int:
    return 2 if ranks == 2 else 1


class NcclMessages:
    """Channel for the messages of one direction of a pipeline, each of which begins at once.

    torch has a communicator and a stream for each pair of ranks of a group. Two things would have stages wait for each
    other for ever:

        torch makes a pair's communicator at its first message, while the host of either waits for the other. Two
        stages that each post a receive of their own direction first would both wait. So all pairs are connected
        beforehand, in one order.

        A communicator carries its messages one after the other, whoever sends them. Between two stages with several
        chunks each, activations go both ways, and a receive that is posted ahead would keep back what the other waits
        for. So two ranks have a group for what either sends. Of more stages a pair has one way only.

    All ranks of the groups make it at once, as that connects them. groups: groups_of() their ranks.
    """

    def __init__(self, groups: Sequence[dist.ProcessGroup], device: torch.device, route: Route) -> None:
        self._groups, self._route = groups, route
        self._own = groups[0].rank()
        token = torch.zeros(1, dtype=torch.uint8, device=device)
        ranks = groups[0].size()
        for sender in sorted(range(ranks), key=lambda rank: rank % 2):  # so most neighbours connect at the same time
            receiver = (sender + 1) % ranks
            if sender == self._own:
                self._launch(Kind.SEND, token, receiver)()
            elif receiver == self._own:
                self._launch(Kind.RECV, token, sender)()

    def start(
        self, kind: Kind, source: Tensor, target: Tensor, peer: int | None, pending: Pending | None, *, blocking: bool
    ) -> "NcclMessage":
        assert peer is not None
        return self._launch(kind, target, peer)

    def _launch(self, kind: Kind, buffer: Tensor, peer: int) -> "NcclMessage":
        sender = self._own if kind is Kind.SEND else peer
        group = self._groups[sender % len(self._groups)]
        with self._route.guard():
            return NcclMessage(launch(kind, group, buffer, buffer, peer, async_op=True), self._route)


class NcclMessage(PendingMessage):
    """Message on its way, on a stream of torch's."""

    def __init__(self, work: dist.Work | None, route: Route) -> None:
        assert work is not None
        self._work, self._route = work, route

    def __call__(self) -> None:
        with self._route.guard():
            self._work.wait()

    def arrived(self) -> bool:
        return self._work.is_completed()


def configure_watchdog(environ: MutableMapping[str, str], ranks: int) -> None:
    """Have these ranks ask and write about as much together as FEW do. What the user has set stays.

    The monitor of torch's watchdog has every rank look into rank 0's store each second, and when a collective fails
    every rank writes its flight recorder to the user's home. Names and defaults are those of torch 2.13
    (ProcessGroupNCCL.hpp, FlightRecorder.hpp).
    """
    if ranks <= FEW:
        return
    environ.setdefault(LOOK_EVERY, str(1000 * ranks // LOOKS_PER_S))
    if not {RECORD, OLD_RECORD} & environ.keys():
        environ[RECORD] = str(max(LEAST_RECORDED, RECORDED * FEW // ranks))
