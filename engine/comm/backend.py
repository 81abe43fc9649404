"""Protocol of back ends, and the calls of torch.distributed that they share."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch.distributed as dist
from torch import Tensor

from engine.comm.collective import Kind, Lane
from engine.grid import Axis
from engine.measure.pending import Pending

# Renamed in torch 2.13; clusters run older ones.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Channel(Protocol):
    """Lane of an axis: the process group of its ranks, over which it sends."""

    def start(
        self, kind: Kind, source: Tensor, target: Tensor, peer: int | None, pending: Pending | None, *, blocking: bool
    ) -> Callable[[], None]:
        """Start a collective that the funnel has checked; returns what waits for it, to be called once.

        source and target are flat, and the same buffer where the kind is in place; the caller keeps both until it
        has waited. peer: the other rank's coordinate, for SEND and RECV. pending: if there is one, the back end stamps
        its end, and its beginning where that is known. blocking: the wait comes at once.
        """


class Backend(Protocol):
    """Source of a Comm's rank and channels."""

    rank: int

    def channel(self, axis: Axis, lane: Lane, members: Sequence[int]) -> Channel:
        """Make the channel of these ranks, this one among them. All of them make their channels in the same order."""


def launch(
    kind: Kind, group: dist.ProcessGroup, source: Tensor, target: Tensor, peer: int | None, *, async_op: bool
) -> dist.Work | None:
    """Hand a collective or message to torch.distributed. SEND and RECV are always asynchronous."""
    if kind is Kind.ALL_GATHER:
        return all_gather(target, source, group=group, async_op=async_op)
    if kind is Kind.REDUCE_SCATTER:
        return _reduce_scatter(target, source, group=group, async_op=async_op)
    if kind is Kind.SEND:
        return dist.isend(source, group=group, group_dst=peer)
    if kind is Kind.RECV:
        return dist.irecv(target, group=group, group_src=peer)
    op = dist.ReduceOp.SUM if kind is Kind.ALL_REDUCE else dist.ReduceOp.MAX
    return dist.all_reduce(target, op=op, group=group, async_op=async_op)


def nothing() -> None:
    """Wait for what is over already."""
