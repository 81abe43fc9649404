"""Protocols of back ends, their calls of torch.distributed, and handles by which callers wait for collectives."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

import torch.distributed as dist
from torch import Tensor

from engine.comm.collective import Kind, Lane
from engine.grid import Axis
from engine.measure.clock import Stamp
from engine.measure.pending import Pending

# Renamed in torch 2.13; clusters run older ones.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Channel(Protocol):
    """Process group of the ranks of an axis, for one lane."""

    def start(
        self, kind: Kind, source: Tensor, target: Tensor, peer: int | None, pending: Pending | None, *, blocking: bool
    ) -> Callable[[], None]:
        """Start a collective that the funnel has checked; returns what waits for it, to be called once.

        source and target are flat, and the same buffer where the kind is in place; the caller keeps both until it has
        waited. peer: the coordinate of the other rank, for SEND and RECV, or of the root. pending: gets the stamp of
        the end, and of the beginning where that is known. blocking: the wait comes at once.
        """


class ChannelSource(Protocol):
    rank: int

    def channel(self, axis: Axis, lane: Lane, members: Sequence[int]) -> Channel:
        """Make the channel of these ranks, this one among them. All of them make their channels in the same order."""


def launch(
    kind: Kind, group: dist.ProcessGroup, source: Tensor, target: Tensor, peer: int | None, *, async_op: bool
) -> dist.Work | None:
    """Start a collective or message of torch.distributed. SEND and RECV are always asynchronous."""
    if kind is Kind.ALL_GATHER:
        return all_gather(target, source, group=group, async_op=async_op)
    if kind is Kind.REDUCE_SCATTER:
        return _reduce_scatter(target, source, group=group, async_op=async_op)
    if kind is Kind.SEND:
        return dist.isend(source, group=group, group_dst=peer)
    if kind is Kind.RECV:
        return dist.irecv(target, group=group, group_src=peer)
    if kind is Kind.BROADCAST:
        return dist.broadcast(target, group=group, group_src=peer, async_op=async_op)
    if kind is Kind.REDUCE:
        return dist.reduce(target, group=group, group_dst=peer, async_op=async_op)
    op = dist.ReduceOp.SUM if kind is Kind.ALL_REDUCE else dist.ReduceOp.MAX
    return dist.all_reduce(target, op=op, group=group, async_op=async_op)


def nothing() -> None: ...


Call = tuple[Kind, Axis, Lane]


class PendingMessage(ABC):
    """Wait for a message whose arrival can be asked for before."""

    @abstractmethod
    def __call__(self) -> None: ...

    def watch(self, notify: Callable[[], None]) -> bool:
        """Have notify called when the message is there. Returns False where the back end has to be asked instead."""
        return False

    @abstractmethod
    def arrived(self) -> bool: ...


class Outstanding:
    """Collectives that a rank has issued, watched by a thread without a lock."""

    __slots__ = ("awaited", "in_flight", "moves", "ranks", "unconfirmed")

    def __init__(self) -> None:
        self.in_flight: dict[Handle, Call] = {}
        """handles that are still to be waited for"""
        self.moves = 0
        """number of issues and of ended waits"""
        self.awaited: Call | None = None
        """the one in whose wait the host stands now"""
        self.unconfirmed: Call | None = None
        """the last one issued since the host last knew all to be over; on CUDA, where the device waits, the host knows
        no more
        """
        self.ranks: tuple[int, ...] | None = None
        """ranks that take part, where they aren't those of the Comm that is watched"""

    def mark_synchronised(self) -> None:
        self.unconfirmed = None
        self.moves += 1


class Handle:
    """Keeper of a collective's buffers from its issue until wait(), which is called exactly once.

    sent: the input buffer. finish: waits for the result; None if it is there already. call: for outstanding. pending:
    the record of this collective.
    """

    __slots__ = ("_finish", "_outstanding", "_pending", "_result", "_sent")

    def __init__(
        self,
        result: Tensor,
        sent: Tensor | None = None,
        finish: Callable[[], None] | None = None,
        call: Call | None = None,
        outstanding: Outstanding | None = None,
        pending: Pending | None = None,
    ) -> None:
        self._result: Tensor | None = result
        self._sent, self._finish, self._outstanding, self._pending = sent, finish, outstanding, pending
        if outstanding is not None and call is not None:
            outstanding.in_flight[self] = call

    def watch(self, notify: Callable[[], None]) -> bool:
        return isinstance(self._finish, PendingMessage) and self._finish.watch(notify)

    def arrived(self) -> bool:
        """Return whether a message is there, so that wait() returns at once."""
        return not isinstance(self._finish, PendingMessage) or self._finish.arrived()

    def release(self) -> bool:
        """Free the buffers of a sent message if it is known to have left; returns whether it is. A wait() still has to
        come.
        """
        assert self._result is not None
        if isinstance(self._finish, PendingMessage) and self._finish.arrived():
            self._finish()
            self._finish = nothing
        if self._finish is not nothing:
            return False
        self._sent, self._result = None, self._result.new_empty(0)
        return True

    def stamp(self) -> Stamp | None:
        """Return the present moment, for waited_since(); None if this collective isn't recorded."""
        return None if self._pending is None else self._pending.clock.stamp()

    def waited_since(self, began: Stamp | None) -> None:
        """Record that the rank has idled from then until now, when this message came."""
        if self._pending is not None and began is not None:
            self._pending.wait(unavoidable=True)
            self._pending.waited = began
            self._pending.resume()
            self._pending = None

    def wait(self, *, unavoidable: bool = False) -> Tensor:
        """Return the result once it is there; on CUDA the computing stream waits, not the host.

        unavoidable: recorded as a wait that no schedule could hide.
        """
        result, self._result = self._result, None
        if result is None:
            raise RuntimeError("A collective's handle was waited for twice.")
        outstanding = self._outstanding
        if outstanding is not None and self._finish is not None:
            outstanding.awaited = outstanding.in_flight.pop(self)
            try:
                if self._pending is not None:
                    self._pending.wait(unavoidable=unavoidable)
                self._finish()
                if self._pending is not None:
                    self._pending.resume()
            finally:
                outstanding.awaited = None
                outstanding.moves += 1
        self._sent = self._finish = None  # only now may the input's memory go to somebody else
        return result
